"""What the scripts beside this one share: Chromium at the console of the server under test, and ways to say what it must show."""

import json
import os
import time
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

URL = os.environ["CONSOLE_URL"]
# The page asks every two seconds; a busy machine is slow.
PATIENCE_S = 40


def told(path, method="GET", body=None):
    """What the server says itself."""
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{URL}/api/v1/{path}", method=method, headers=head, data=body and json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Browser:
    """Chromium with one tab."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        # Root may not use the sandbox.
        for argument in ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]:
            options.add_argument(argument)
        options.add_argument("--window-size=1300,1000")
        options.add_argument(f"--user-data-dir={os.environ['BROWSER_HOME']}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.refusals = 0
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

    def open(self, page=""):
        self.driver.get(f"{URL}/{page}")

    def all(self, css, within=None):
        return (within or self.driver).find_elements(By.CSS_SELECTOR, css)

    def until(self, what, look):
        """Looks until there is something, and gives it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if found := look():
                    return found
            except StaleElementReferenceException:
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {PATIENCE_S} s; the page says:\n{self.text()}")
            time.sleep(0.1)

    def text(self):
        return self.driver.find_element(By.TAG_NAME, "body").text

    def says(self, *texts):
        """Waits until the page says all of these."""
        self.until(f"to read {texts}", lambda: all(text in self.text() for text in texts))

    def silent(self, text):
        """Waits until the page says this no more."""
        self.until(f"not to read {text!r}", lambda: text not in self.text())

    def go(self, title):
        """Follows a link of the navigation; nothing is refused to the page there."""
        self.until(title, lambda: [link for link in self.all("nav a") if link.text == title])[0].click()
        self.until(title, lambda: [heading for heading in self.all("main h2") if heading.text == title])
        alerts = [alert.text for alert in self.all("main [role=alert]")]
        assert not alerts, alerts

    def row(self, name):
        """The row of a table that is named so."""
        def look():
            return [row for row in self.all("tbody tr") for head in self.all("th", row) if head.text.lstrip("└ ") == name]
        return self.until(f"a row {name}", look)[0]

    def press(self, verb, within=None):
        """Presses the button that says this."""
        def look():
            found = [button for button in self.all("button", within and within()) if button.text == verb]
            if found:
                found[0].click()
            return found
        self.until(f"a button {verb!r}", look)

    def fill(self, **fields):
        """Fills in the fields of the dialog; true and false are for boxes that are checked."""
        for name, value in fields.items():
            field = self.until(f"a field {name}", lambda: self.all(f"dialog [name={name}], form [name={name}]"))[0]
            if isinstance(value, bool):
                if field.is_selected() != value:
                    field.click()
            elif field.tag_name == "select":
                next(option for option in self.all("option", field) if option.get_property("value") == value).click()
            else:
                field.clear()
                field.send_keys(value)

    def dialog(self, verb, button, within=None, **fields):
        """Opens a dialog, fills it in and does what it is for: it closes."""
        self.press(verb, within)
        self.fill(**fields)
        self.press(button, lambda: self.all("dialog")[0])
        self.until(f"{button!r} to be done", lambda: not self.all("dialog"))

    def refused(self, verb, button, text, within=None, by_page=False, **fields):
        """The same, where it is refused with this text: by the server, or by the page before it asks."""
        self.press(verb, within)
        self.fill(**fields)
        self.press(button, lambda: self.all("dialog")[0])
        self.warned(text)
        self.refusals += not by_page

    def told_before(self, verb, text, within=None):
        """Opens a dialog, which says before anything is done that it would be refused."""
        self.press(verb, within)
        self.warned(text)
        self.refusals += 1

    def warned(self, text):
        """The dialog says why not; it is closed."""
        self.until(text, lambda: any(text in alert.text for alert in self.all("dialog [role=alert]")))
        self.press("Cancel")
        self.until("the dialog to close", lambda: not self.all("dialog"))

    def no_errors(self):
        """The browser complains of nothing but of each answer that refused what a dialog asked for."""
        log = [entry["message"] for entry in self.driver.get_log("browser")]
        # That a canvas is read is the scripts' own doing.
        log = [line for line in log if "getImageData" not in line]
        refusals = [line for line in log if "responded with a status of 4" in line]
        assert len(refusals) == self.refusals and len(refusals) == len(log), log
