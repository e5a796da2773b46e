"""Every page: what it shows, and what can be changed there."""

import os
import signal
import subprocess

from browser import Browser, told

MIB = 1 << 20


def load():
    """Requests for the volume, until it is terminated."""
    options = ["--name=load", "--ioengine=nbd", f"--uri={os.environ['VOLUME']}", "--rw=randrw", "--bs=4k", "--iodepth=4"]
    options += ["--size=64m", "--time_based", "--runtime=900"]
    return subprocess.Popen(["fio", *options], stdout=subprocess.DEVNULL)


def names(resource):
    return [thing["name"] for thing in told(resource)]


# Of each chart, whether a point of it has the colour of a line.
LINES = """
    const css = getComputedStyle(document.documentElement);
    const colours = [1, 2].map(at => css.getPropertyValue(`--line-${at}`).match(/[0-9a-f]{2}/g).map(hex => parseInt(hex, 16)));
    return [...document.querySelectorAll('.chart canvas')].map(it => {
        const { data } = it.getContext('2d').getImageData(0, 0, it.width, it.height);
        const is = (at, colour) => data[at + 3] > 200 && colour.every((value, of) => Math.abs(value - data[at + of]) < 24);
        for (let at = 0; at < data.length; at += 4) if (colours.some(colour => is(at, colour))) return true;
        return false;
    });
"""
# How many colours the heat map has.
COLOURS = """
    const it = document.querySelector('canvas.heat');
    const { data } = it.getContext('2d').getImageData(0, 0, it.width, it.height);
    return new Set(data.filter((_, at) => at % 4 === 0)).size;
"""


def overview(browser):
    browser.open()
    browser.says("Overview", "healthy", "free of")
    with load() as fio:
        browser.until("a rate of requests", lambda: browser.all(".tile .value")[0].text not in ("–", "0/s"))
        browser.until("a line on each of the four charts", lambda: browser.driver.execute_script(LINES) == [True] * 4)
        tier(browser)
        fio.terminate()


def tier(browser):
    browser.go("Tiering")
    browser.says("Policy worth", "demo, by address", "Busiest regions, at")
    fast = lambda: [row for row in browser.all("main tbody")[0].find_elements("css selector", "tr") if browser.all("td", row)[2].text != "0 B"]
    browser.until("a region in the fast tier", lambda: browser.all("main tbody td") and fast())
    browser.until("cells of several colours", lambda: browser.driver.execute_script(COLOURS) > 3)
    browser.says("Moves", "saves about")
    browser.all("canvas.heat")[0].click()
    browser.until("the region in the address", lambda: browser.driver.current_url.split("#")[1].startswith("/tier/demo/"))
    browser.says("The region at", "lie in the fast tier")
    browser.dialog("Change …", "Change", pin="slow")
    browser.says("Pinned: all of it is held in the slow tier")
    assert told("volumes/demo/tier")["pin"] == "slow"
    browser.refused("Change …", "Change", "no size", by_page=True, pin="none", floor="much")
    browser.dialog("Change …", "Change", pin="none", floor="4M", ceiling="1.5G")
    browser.says("4 MiB of it stay in the fast tier once they are there; 1.5 GiB of it may lie there")
    # A pinned volume has neither: they go.
    browser.dialog("Change …", "Change", pin="fast")
    browser.says("Pinned: all of it is held in the fast tier")
    browser.open("#/tier/nobody")
    browser.says("No volume is called nobody.")


def volumes(browser):
    browser.go("Volumes")
    browser.dialog("New volume …", "Make it", name="vm ä%2F", size="64M", layout="mirror")
    browser.row("vm ä%2F")
    made = {volume["name"]: volume for volume in told("volumes")}["vm ä%2F"]
    assert made["size_bytes"] == 64 * MIB and made["layout"] == "mirror", made
    browser.refused("New volume …", "Make it", "vm ä%2F", name="vm ä%2F", size="64M")
    browser.refused("New volume …", "Make it", "no size", by_page=True, name="other", size="10X")
    row = lambda name: lambda: browser.row(name)
    browser.dialog("Resize", "Resize it", row("vm ä%2F"), size="128M")
    browser.until("the new size", lambda: "128 MiB" in browser.row("vm ä%2F").text)
    browser.refused("Resize", "Resize it", "are fewer", row("vm ä%2F"), size="64M")
    browser.dialog("Snapshot", "Take it", row("vm ä%2F"), name="vm ä%2F@first one")
    browser.row("vm ä%2F@first one")
    browser.dialog("Snapshot several …", "Take them", names="demo@before\nobjects@before", read_only=True)
    browser.dialog("Clone", "Make it", row("demo@before"), name="again")
    # The tree that they grew into.
    browser.row("again")
    heads = [head.text.lstrip("└ ") for head in browser.all("tbody th")]
    assert heads[3:] == ["objects", "objects@before", "vm ä%2F", "vm ä%2F@first one"], heads
    assert heads[:3] == ["demo", "demo@before", "again"], heads
    assert "clone" in browser.row("again").text and "read-only" in browser.row("demo@before").text
    browser.told_before("Delete", "again", row("demo@before"))
    browser.dialog("Delete", "Delete it", row("again"))
    browser.dialog("Roll back", "Roll it back", row("demo@before"), force=True)
    browser.dialog("Delete", "Delete it", row("demo@before"))
    told("replicas/vm%20%C3%A4%252F", "PUT", {"point": "first one"})
    browser.until("a copy", lambda: "follows its source" in browser.row("vm ä%2F").text)
    told("replicas/vm%20%C3%A4%252F/promote", "POST")
    browser.dialog("Delete", "Delete it", row("vm ä%2F@first one"))
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
    browser.refused("Replace", "Replace it", "no-such-disk", lambda: browser.row(path), where="/no-such-disk")
    browser.dialog("Replace", "Replace it", lambda: browser.row(path), where=os.environ["SPARE_DISK"], size="4G")
    browser.row(os.environ["SPARE_DISK"])
    browser.until("all to be well", lambda: told("status")["health"] == "healthy")
    browser.silent("degraded")
    assert path not in [disk["path"] for disk in told("disks")]
    browser.refused("Add a disk …", "Add", "no-such-disk", where="/no-such-disk")


def jobs(browser):
    browser.go("Jobs")
    browser.says("rebuild of disk 2", "done")
    browser.dialog("Check the pool …", "Check", data=False)
    browser.says("all is well")
    # The newest, of many.
    browser.until("the newest moves", lambda: told("tier/moves?limit=3") == told("tier/moves")[-3:])


def objects(browser):
    browser.go("Objects")
    browser.dialog("New bucket …", "Make it", name="photos")
    browser.refused("New bucket …", "Make it", "photos", name="photos")
    browser.told_before("Delete", "empty", lambda: browser.row("demo"))
    browser.dialog("Delete", "Delete it", lambda: browser.row("photos"))
    browser.silent("photos")
    browser.press("New key …")
    browser.fill(name="camera", may="read demo")
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


def unanswered(browser):
    """A change whose answer does not come is left, and says so."""
    browser.go("Volumes")
    browser.driver.execute_script("window.ask = window.fetch; window.fetch = (at, how) => how.method === 'GET' ? ask(at, how) : new Promise(() => {})")
    browser.press("New volume …")
    browser.fill(name="late", size="64M")
    browser.press("Make it")
    browser.says("At work …")
    browser.press("Cancel")
    browser.warned("it may have been done all the same")
    browser.driver.execute_script("window.fetch = window.ask")


# The status comes late, or is refused, or does not come. Notes what the page waits for, and why it asks no longer.
SLOW = """
    const [ask, wait] = [window.fetch, window.setTimeout];
    Object.assign(window, { waits: [], ends: [] });
    window.setTimeout = (act, ms) => { window.waits.push(ms); return wait(act, ms); };
    window.fetch = (at, how) => new Promise((tell, refuse) => {
        if (at !== '/api/v1/status') tell(ask(at, how));
        else if (window.isStuck) how.signal.addEventListener('abort', () => { window.ends.push(how.signal.reason.name); refuse(); });
        else wait(() => window.isRefused ? refuse() : tell(ask(at, how)), window.isRefused ? 700 : 1800);
    });
"""


def slow(browser):
    browser.open("#/disks")
    browser.driver.execute_script(SLOW)
    window = lambda name: browser.driver.execute_script(f"return window.{name}")
    browser.go("Volumes")
    browser.until("a wait after a slow answer", lambda: 15000 in window("waits"))
    browser.driver.execute_script("window.isRefused = true")
    browser.all("nav a")[0].click()
    browser.says("the server does not answer")
    assert 2000 in window("waits"), window("waits")
    browser.driver.execute_script("window.isStuck = true")
    for title in ["Objects", "Volumes"]:
        browser.until(title, lambda: [link for link in browser.all("nav a") if link.text == title])[0].click()
    browser.until("the end of a round that another page cuts short", lambda: window("ends"))
    assert set(window("ends")) == {"AbortError"}, window("ends")
    browser.driver.refresh()


with Browser() as browser:
    overview(browser)
    volumes(browser)
    disks(browser)
    jobs(browser)
    objects(browser)
    copies(browser)
    unanswered(browser)
    slow(browser)
    # An address that names nothing shows the beginning.
    browser.open("#/nowhere/at/all")
    browser.says("Overview", "Served by the fast tier")
    browser.no_errors()
    os.kill(int(os.environ["SERVER_PID"]), signal.SIGTERM)
    browser.says("the server does not answer", "What is below is what it said last", "Overview")
