"""Where the server has a token."""

from browser import Browser

with Browser() as browser:
    browser.open()
    browser.says("Who looks?")
    # What no header can have is refused before anybody is asked.
    browser.fill(token="open“sesame”")
    browser.press("Look")
    browser.says("letters, digits and signs")
    assert "demo" not in browser.text() and "healthy" not in browser.text(), browser.text()
    for token, text in [("open-barley-open-barley", "is not the one"), ("open-sesame-open-sesame", "healthy")]:
        browser.fill(token=token)
        browser.press("Look")
        browser.says(text)
    browser.go("Volumes")
    browser.row("demo")
    # It stays as long as the tab, over a reload.
    browser.driver.refresh()
    browser.row("demo")
    log = [entry["message"] for entry in browser.driver.get_log("browser")]
    assert all("status of 401" in line for line in log), log
