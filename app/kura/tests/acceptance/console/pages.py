"""Every page: what it shows, and what can be changed there."""

import os
import signal
import subprocess

from browser import Browser, told

MIB = 1 << 20


def load(seconds):
    """Requests for the volume, for a while."""
    options = ["--name=load", "--ioengine=nbd", f"--uri={os.environ['VOLUME']}", "--rw=randrw", "--bs=4k", "--iodepth=4"]
    options += ["--size=64m", "--time_based", f"--runtime={seconds}"]
    return subprocess.Popen(["fio", *options], stdout=subprocess.DEVNULL)


def names(resource):
    return [thing["name"] for thing in told(resource)]


def overview(browser):
    browser.open()
    browser.says("Overview", "healthy", "free of", "counting")
    with load(60) as fio:
        browser.until("a rate of requests", lambda: browser.all(".tile .value")[0].text not in ("–", "0/s"))
        # A line has been drawn on each of the charts: what is not transparent is more than a grid has.
        drawn = "return [...document.querySelectorAll('.chart canvas')].map(it => it.getContext('2d')" \
                ".getImageData(0, 0, it.width, it.height).data.filter((_, at) => at % 4 === 3).some(Boolean))"
        assert browser.driver.execute_script(drawn) == [True] * 4
        tier(browser)
        fio.terminate()


def tier(browser):
    browser.go("Tiering")
    browser.says("Policy worth", "demo, by address", "Busiest regions, at")
    # Writes go up first.
    browser.until("a region in the fast tier", lambda: browser.all("main table") and "MiB" in browser.all("main tbody")[0].text)
    heat = browser.all("canvas.heat")[0]
    reds = "const it = document.querySelector('canvas.heat'); const data = it.getContext('2d').getImageData(0, 0, it.width, it.height).data;" \
           "return new Set(data.filter((_, at) => at % 4 === 0)).size"
    browser.until("cells of several colours", lambda: browser.driver.execute_script(reds) > 3)
    heat.click()
    browser.until("the region in the address", lambda: browser.driver.current_url.split("#")[1].startswith("/tier/demo/"))
    browser.says("The region at", "lie in the fast tier")
    browser.dialog("Change …", "Change", pin="slow")
    browser.says("Pinned: all of it is held in the slow tier")
    assert told("volumes/demo/tier")["pin"] == "slow"
    browser.refused("Change …", "Change", "no size", pin="none", floor="much")
    browser.dialog("Change …", "Change", pin="none", floor="4M", ceiling="1.5G")
    browser.says("4 MiB of it stay in the fast tier once they are there; 1.5 GiB of it may lie there")
    browser.says("Moves", "saves about")


def volumes(browser):
    browser.go("Volumes")
    browser.dialog("New volume …", "Make it", name="vm ä%2F", size="64M", layout="mirror")
    browser.row("vm ä%2F")
    made = {volume["name"]: volume for volume in told("volumes")}["vm ä%2F"]
    assert made["size_bytes"] == 64 * MIB and made["layout"] == "mirror", made
    browser.refused("New volume …", "Make it", "vm ä%2F", name="vm ä%2F", size="64M")
    browser.refused("New volume …", "Make it", "no size", name="other", size="10X")
    row = lambda name: lambda: browser.row(name)
    browser.dialog("Resize", "Resize it", row("vm ä%2F"), size="128M")
    browser.until("the new size", lambda: "128 MiB" in browser.row("vm ä%2F").text)
    browser.refused("Resize", "Resize it", "are fewer", row("vm ä%2F"), size="64M")
    browser.dialog("Snapshot several …", "Take it", names="demo@before objects@before", read_only=True)
    browser.dialog("Clone", "Make it", row("demo@before"), name="again")
    # The tree that they grew into.
    browser.row("again")
    heads = [head.text.lstrip("└ ") for head in browser.all("tbody th")]
    assert heads[:3] == ["demo", "demo@before", "again"], heads
    assert "clone" in browser.row("again").text and "read-only" in browser.row("demo@before").text
    # Told before anybody presses the button: a snapshot that a clone stands on.
    browser.press("Delete", row("demo@before"))
    browser.until("why not", lambda: any("again" in alert.text for alert in browser.all("dialog [role=alert]")))
    browser.press("Cancel")
    browser.dialog("Delete", "Delete it", row("again"))
    browser.dialog("Roll back", "Roll it back", row("demo@before"), force=True)
    browser.dialog("Delete", "Delete it", row("demo@before"))
    browser.dialog("Delete", "Delete it", row("vm ä%2F"))
    browser.silent("vm ä%2F")
    assert sorted(names("volumes")) == ["demo", "objects"] and names("snapshots") == ["objects@before"]
    browser.dialog("New schedule …", "Take them", volume="demo", prefix="daily", minutes="1440", keep="7")
    browser.says("demo@daily-TIME", "24 h", "7 snapshots")
    assert told("snapshot-schedules") == [{"volume": "demo", "prefix": "daily", "every_s": 86400, "keep": 7}]
    browser.dialog("Remove", "Remove it")
    browser.says("No volume has one.")


def disks(browser):
    browser.go("Disks")
    assert len([badge for badge in browser.all("main .badge") if badge.text == "healthy"]) == 8
    browser.says("Room of", "Controllers", "To the hot area")
    path = told("disks")[2]["path"]
    browser.dialog("Fail", "Fail it", lambda: browser.row(path))
    browser.until("the failed disk", lambda: "failed" in browser.row(path).text)
    browser.says("degraded")
    browser.refused("Replace", "Replace it", "no-such-disk", lambda: browser.row(path), path="/no-such-disk")
    browser.dialog("Replace", "Replace it", lambda: browser.row(path), path=os.environ["SPARE_DISK"], size="4G")
    browser.row(os.environ["SPARE_DISK"])
    browser.until("all to be well", lambda: told("status")["health"] == "healthy")
    browser.silent("degraded")
    assert path not in [disk["path"] for disk in told("disks")]
    browser.refused("Add a disk …", "Add", "no-such-disk", path="/no-such-disk")


def jobs(browser):
    browser.go("Jobs")
    browser.says("rebuild of disk 2", "done")
    browser.dialog("Check the pool …", "Check", data=False)
    browser.says("all is well")


def objects(browser):
    browser.go("Objects")
    browser.dialog("New bucket …", "Make it", name="photos")
    browser.refused("New bucket …", "Make it", "photos", name="photos")
    browser.refused("Delete", "Delete it", "empty", lambda: browser.row("demo"))
    browser.dialog("Delete", "Delete it", lambda: browser.row("photos"))
    browser.silent("photos")
    browser.press("New key …")
    browser.fill(name="camera", bucket="demo", grant="read")
    browser.press("Make it")
    secret = browser.until("a secret", lambda: browser.all("dialog pre"))[0].text
    browser.press("Close")
    key = secret.split("AWS_ACCESS_KEY_ID=")[1].split()[0]
    assert "read demo" in browser.row(key).text and "AWS_SECRET_ACCESS_KEY=" in secret
    browser.dialog("Revoke", "Revoke it", lambda: browser.row(key))
    browser.silent(key)
    for link, then in [("demo", ["top", "3 B"]), ("deep/", ["er/"]), ("er/", ["a b", "ä", "demo / deep / er"])]:
        browser.until(link, lambda: [a for a in browser.all("main a") if a.text == link])[0].click()
        browser.says(*then)


def copies(browser):
    browser.go("Replication")
    browser.says("off-site", "/copy", "24 h", "2 days", "No volume here is a copy.")


with Browser() as browser:
    overview(browser)
    volumes(browser)
    disks(browser)
    jobs(browser)
    objects(browser)
    copies(browser)
    # An address that names nothing shows the beginning.
    browser.open("#/nowhere/at/all")
    browser.says("Overview", "Served by the fast tier")
    browser.no_errors()
    os.kill(int(os.environ["SERVER_PID"]), signal.SIGTERM)
    browser.says("the server does not answer", "What is below is what it said last", "Overview")
