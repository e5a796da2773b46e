//! The console, in a browser.

use crate::harness::{Home, Server, ok, tool};
use std::fs;
use std::path::Path;
use std::process::Command;

/// One of the scripts in `console/`, which drive Chromium.
fn script(name: &str, home: &Home, server: &Server) -> Command {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acceptance/console");
    // Debian's, for which Selenium is installed.
    let mut command = tool("/usr/bin/python3");
    command.arg("-B").arg(folder.join(name));
    command.env("CONSOLE_URL", format!("http://127.0.0.1:{}", server.port("http")));
    command.env("BROWSER_HOME", home.path("browser")).env("VOLUME", home.uri("demo"));
    command.env("SERVER_PID", server.pid().to_string()).env("SPARE_DISK", home.path("spare"));
    command
}

#[test]
fn every_page_shows_what_there_is_and_changes_it() {
    let home = Home::new();
    let server = home.serve();
    for (key, content) in [("top", "one"), ("deep/er/a b", "two"), ("deep/er/ä", "three")] {
        fs::write(home.path("content"), content).expect("a file");
        home.ok(&["object", "put", &format!("demo/{key}"), "content"]);
    }
    fs::create_dir(home.path("files")).expect("a folder");
    home.ok(&["replicate", "add", "off-site", "files", "copy", "--every", "1d", "--rpo", "2d"]);
    ok(&mut script("pages.py", &home, &server));
}

#[test]
fn who_looks_has_to_show_the_token_where_there_is_one() {
    let home = Home::new();
    fs::write(home.path("kura.toml"), "[admin]\ntoken = \"open-sesame-open-sesame\"\n").expect("a file");
    let server = home.serve_with(&["--config", "kura.toml"]);
    ok(&mut script("with_token.py", &home, &server));
}
