"""What is asked of a server, and of a gateway."""

READY, STATUS, PEERS = "/pd/ready", "/pd/status", "/pd/peers"
LIVE, ENDED = "/pd/rooms?state=live&limit=60", "/pd/rooms?state=ended&limit=16"
# Upstream's: the first is read from shared memory, the second passes through the scheduler.
LOADS, INFO = "/v1/loads?include=core,disagg,queues", "/server_info"
HEALTH, METRICS, WORKERS = "/health", "/metrics", "/workers"
OF_SERVER = ("/ready", READY, STATUS, LIVE, ENDED, PEERS, LOADS, METRICS, INFO)
OF_GATEWAY = (HEALTH, "/readiness", WORKERS)
# Asked a second time, to see what moves.
TWICE = (STATUS, LIVE, LOADS)
# Every rank answers these itself, too.
PD = (STATUS, LIVE, ENDED, PEERS)
NOT_ASKED = "it was not asked"
SILENT = f"{NOT_ASKED}: its scheduler is silent, and upstream would take the server for unhealthy from then on"
OVER = f"{NOT_ASKED}: the time was over"
