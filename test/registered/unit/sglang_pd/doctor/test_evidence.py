"""Evidence survives the way into a file and back; what is no evidence is refused by name."""

import gzip
import json

import pytest

from harness.evidence import case, gpu, log, main, room, scheduler, server, snapshot
from sglang_pd.doctor import bundle, report
from sglang_pd.doctor.case import Case
from sglang_pd.doctor.evidence import Thread, from_data, to_data
from sglang_pd.doctor.rules import judge
from sglang_pd.errors import UserError


@pytest.fixture
def whole():
    process = scheduler(threads=[Thread(100, "python", "R", 0.9), Thread(101, "x", "D", 0.0, "io_schedule")])
    prefill = server(
        "prefill", rooms=[room(2**62, "bootstrapping", 3.0)], processes=[main(), process], log=log("ERROR: x")
    )
    return snapshot(prefill, server("decode"), gpus=[gpu(100, 3.0, 160.0)], gaps=["nvidia-smi was slow"])


@pytest.mark.parametrize("name", ["b.json", "b.json.gz"])
def test_a_bundle_is_read_as_it_was_written(whole, tmp_path, name):
    path = tmp_path / name
    assert bundle.write(path, whole) == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    assert bundle.read(path) == whole
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_judged_alike(whole):
    again = from_data(json.loads(json.dumps(to_data(whole))))
    assert judge(Case(again)) == judge(Case(whole))


def test_fields_of_a_later_doctor_are_passed_over(whole):
    data = to_data(whole)
    data["mood"] = "good"
    data["servers"][0]["smell"] = 3
    assert from_data(data) == whole


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data.pop("schema"), "it is not a bundle of the doctor"),
        (lambda data: data["schema"].update(version=9), "it is of version 9; this doctor reads version 1"),
        (lambda data: data.pop("servers"), "bundle: .*servers"),
        (lambda data: data.update(servers={}), r"bundle.servers is \{\}, not a list"),
        (lambda data: data["servers"][0].update(url=7), r"bundle.servers\[0\].url is 7, not of type str"),
        (lambda data: data["servers"][0].update(replies=[]), r"bundle.servers\[0\].replies is \[\], not an object"),
        (lambda data: data.update(at="noon"), "bundle.at is 'noon', not a number"),
        (lambda data: data.update(servers=[4]), r"bundle.servers\[0\] is int, not an object"),
    ],
)
def test_what_is_no_bundle_is_refused_by_name(whole, change, text):
    data = json.loads(json.dumps(to_data(whole)))
    change(data)
    with pytest.raises(ValueError, match=text):
        from_data(data)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\x1f\x8bbroken", gzip.compress(b"[]")])
def test_a_file_that_is_no_bundle(tmp_path, content):
    path = tmp_path / "b"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"--from-bundle .*; give a file that"):
        bundle.read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        bundle.read(tmp_path / "none")
    with pytest.raises(UserError, match=r"--bundle .*cannot be written"):
        bundle.write(tmp_path / "none" / "b.json", snapshot())


def test_a_report_fits_80_columns_and_begins_with_the_finding(whole):
    judged = Case(whole)
    text = report.text(judged, judge(judged))
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("FAULT, likely: 1 request reached prefill-0, and no decode\n")
    assert f"{2**62} rid=r{2**62} prefill: bootstrapping for 3.0 s" in " ".join(text.split())
    assert "2027-01-15 08:00:00, gathered on here in 2.0 s" in text


def test_times_are_those_of_the_machine_that_gathered():
    at = case(server("prefill"), server("decode"), utc_offset=3600.0)
    assert "2027-01-15 09:00:00, gathered on here" in report.text(at, judge(at))


def test_the_json_report_names_what_was_looked_at(whole):
    judged = Case(whole)
    data = json.loads(json.dumps(report.to_data(judged, judge(judged))))
    assert data["schema"] == {"name": "sglang-pd/doctor", "version": 1}
    assert [one["name"] for one in data["targets"]] == ["prefill-0", "decode-0"]
    first = data["findings"][0]
    assert (first["severity"], first["support"], first["rooms"][0]["room"]) == ("fault", "likely", 2**62)
    assert "nvidia-smi was slow" in data["not_known"]
