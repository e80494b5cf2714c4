"""What the kernels' programs are made for; needs neither torch nor triton."""

HEAD_DIM = 512
BLOCK_H = 16  # heads of a program: the rows of the matrix unit's smallest product
