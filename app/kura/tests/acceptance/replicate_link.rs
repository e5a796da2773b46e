//! What stands between two ends: a link that is slow, far or dead, a server that is silent, a second source, a stranger.

use crate::crash::Random;
use crate::harness::{Home, Server, fails};
use crate::link::Link;
use crate::nbd::{Client, FLUSH, WRITE};
use crate::replicate::{assert_same, change, grow, run, serve};
use crate::replicate_volume::points;
use crate::tls::certificates;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A volume `db` with so many bytes in it that cannot be made smaller.
fn begin(home: &Home, noise_bytes: usize) {
    home.ok(&["volume", "create", "db", "--size", "16M"]);
    write_noise(home, noise_bytes, 1);
}

fn write_noise(home: &Home, noise_bytes: usize, seed: u64) {
    let mut random = Random(seed);
    let noise: Vec<u8> = (0..noise_bytes / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let mut db = Client::connect(&home.socket(), "db").expect("a connection");
    db.call(WRITE, 0, 0, noise_bytes as u32, &noise).expect("a write");
    db.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
}

fn at(server: &Server) -> String {
    format!("http://127.0.0.1:{}/copy", server.port("http"))
}

/// A server that takes what it is told, says `answer` or nothing, and tells what it was told.
fn stranger(answer: &'static [u8]) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            let len = stream.read(&mut request).unwrap_or(0);
            let _ = tell.send(String::from_utf8_lossy(&request[..len]).into_owned());
            let _ = stream.write_all(answer);
            held.push(stream);
        }
    });
    (format!("http://{address}/copy"), told)
}

#[test]
fn frames_on_a_slow_link_take_their_time() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    begin(&here, 6 << 20);
    // Frames go side by side: each takes longer than an end may be silent.
    let link = Link::with(512 << 10, Duration::ZERO);
    link.to.store(target.port("http"), Ordering::SeqCst);
    let url = format!("http://127.0.0.1:{}/copy", link.port);
    let began = Instant::now();
    here.ok(&["replicate", "run", "volume:db", &url, "--timeout", "8s"]);
    assert!(began.elapsed() > Duration::from_secs(10), "it was not slow: {:?}", began.elapsed());
    assert!(here.ok(&["replicate", "verify", "volume:db", &url]).contains("nothing differs"));
}

#[test]
fn a_link_that_is_far_carries_many_frames_at_once() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    begin(&here, 12 << 20);
    let link = Link::with(u64::MAX, Duration::from_millis(25));
    link.to.store(target.port("http"), Ordering::SeqCst);
    let url = format!("http://127.0.0.1:{}/copy", link.port);
    here.ok(&["replicate", "run", "volume:db", &url]);
    assert!(here.ok(&["replicate", "verify", "volume:db", &url]).contains("nothing differs"));
}

#[test]
fn an_end_that_is_silent_is_given_up_and_found_again() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    begin(&here, 1 << 20);
    let (url, _told) = stranger(b"");
    let complaint = fails(&mut here.kura(&["replicate", "run", "volume:db", &url, "--timeout", "2s"]));
    assert!(complaint.contains("nothing moved for 2 s") && complaint.lines().count() == 1, "{complaint}");

    // The other machine loses its power in the midst of it: nobody says that it is gone.
    let link = Link::with(1 << 20, Duration::ZERO);
    link.to.store(target.port("http"), Ordering::SeqCst);
    let url = format!("http://127.0.0.1:{}/copy", link.port);
    here.ok(&["replicate", "add", "dr", "volume:db", &url, "--timeout", "20s"]);
    here.ok(&["replicate", "run", "dr"]);
    write_noise(&here, 12 << 20, 2);
    let dead = std::thread::spawn({
        let link = link.clone();
        move || {
            std::thread::sleep(Duration::from_secs(1));
            link.is_dead.store(true, Ordering::SeqCst);
        }
    });
    let complaint = fails(&mut here.kura(&["replicate", "run", "dr"]));
    assert!(complaint.contains("nothing moved for 20 s"), "{complaint}");
    dead.join().expect("the link");
    link.is_dead.store(false, Ordering::SeqCst);
    here.ok(&["replicate", "run", "dr"]);
    assert!(here.ok(&["replicate", "verify", "dr"]).contains("nothing differs"));
}

#[test]
fn a_first_run_that_adopts_goes_on_where_it_was_cut_off() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    begin(&here, 16 << 20);
    let link = Link::new();
    link.to.store(target.port("http"), Ordering::SeqCst);
    let url = format!("http://127.0.0.1:{}/copy", link.port);
    let run = ["replicate", "run", "volume:db", &url, "--adopt", "--json"];
    link.left_bytes.store(10 << 20, Ordering::SeqCst);
    fails(&mut here.kura(&[&run[..], &["--bandwidth", "8M"]].concat()));
    link.left_bytes.store(u64::MAX, Ordering::SeqCst);
    let again: serde_json::Value = serde_json::from_str(&here.ok(&run)).expect("a summary");
    assert!(again["sent_bytes"].as_u64() < Some(13 << 20), "what was there is not sent again: {again}");
    assert!(here.ok(&["replicate", "verify", "volume:db", &url]).contains("nothing differs"));
}

#[test]
fn a_copy_has_one_source() {
    let (first, second, there) = (Home::new(), Home::new(), Home::new());
    let (_first, _second, target) = (first.serve(), second.serve(), there.serve());
    let url = at(&target);
    begin(&first, 1 << 20);
    begin(&second, 2 << 20);
    let run = ["replicate", "run", "volume:db", &url, "--keep", "9"];
    first.ok(&run);
    let before = points(&there, "copy");
    // Nor does a schedule that is refused leave more and more behind.
    for _ in 0..3 {
        let complaint = fails(&mut second.kura(&run));
        assert!(complaint.contains("is the copy of another source"), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    assert_eq!((points(&there, "copy"), points(&second, "db").len()), (before, 0));
    first.ok(&run);
    assert!(first.ok(&["replicate", "verify", "volume:db", &url]).contains("nothing differs"));

    second.ok(&[&run[..], &["--adopt"]].concat());
    assert!(second.ok(&["replicate", "verify", "volume:db", &url]).contains("nothing differs"));
    let complaint = fails(&mut first.kura(&run));
    assert!(complaint.contains("is the copy of another source"), "{complaint}");
    // Said again, it loses nothing.
    let kept = points(&there, "copy");
    second.ok(&[&run[..], &["--adopt"]].concat());
    assert!(points(&there, "copy").starts_with(&kept), "{kept:?}, {:?}", points(&there, "copy"));

    // A volume of the same name that was made anew is another one.
    for point in points(&second, "db") {
        second.ok(&["snapshot", "delete", &point]);
    }
    second.ok(&["volume", "delete", "db", "--force"]);
    begin(&second, 1 << 20);
    let complaint = fails(&mut second.kura(&run));
    assert!(complaint.contains("is the copy of another source"), "{complaint}");
}

#[test]
fn what_opens_this_machine_goes_to_no_other() {
    let here = Home::new();
    let _source = here.serve();
    begin(&here, 4096);
    std::fs::write(here.path("token"), "for-the-target").expect("a token");
    let (url, told) = stranger(b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n");
    let run = ["replicate", "run", "volume:db", &url, "--token", "of-this-machine"];
    fails(&mut here.kura(&run));
    let asked = told.recv().expect("a request");
    assert!(asked.starts_with("GET /api/") && !asked.contains("of-this-machine"), "{asked}");
    fails(&mut here.kura(&[&run[..], &["--target-token-file", "token"]].concat()));
    let asked = told.recv().expect("a request");
    assert!(asked.contains("for-the-target") && !asked.contains("of-this-machine"), "{asked}");

    let far = "http://192.0.2.1:7400/copy";
    for args in [&["run", "volume:db", far][..], &["add", "dr", "volume:db", far]] {
        let complaint = fails(&mut here.kura(&[&["replicate"], args].concat()));
        assert!(complaint.contains("--allow-plain") && complaint.lines().count() == 1, "{complaint}");
    }
    let asked = ["replicate", "run", "volume:db", far, "--allow-plain", "--timeout", "1s"];
    let complaint = fails(&mut here.kura(&asked));
    assert!(complaint.contains("no server at http://192.0.2.1:7400"), "{complaint}");
}

#[test]
fn a_tree_goes_in_tls_over_a_link_that_is_far() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("copies/a"));
    grow(&source);
    certificates(&home.path("pki"));
    certificates(&home.path("others"));
    let identity = ["--cert", "pki/server-cert.pem", "--key", "pki/server-key.pem"];
    let (_serving, address) = serve(&home, "copies", &identity);
    let port = address.strip_prefix("kuras://127.0.0.1:").expect("an address").parse().expect("a port");
    let link = Link::with(u64::MAX, Duration::from_millis(25));
    link.to.store(port, Ordering::SeqCst);
    let (uri, token) = (format!("kuras://127.0.0.1:{}/a", link.port), ["--target-token-file", "copies.token"]);
    doors(&home, &uri, port, token);
    let args = [&["source", &*uri, "--target-ca", "pki/ca-cert.pem"], &token[..]].concat();
    let began = Instant::now();
    assert_eq!(run(&home, &args)["is_complete"], true);
    assert_same(&source, &target);
    change(&source);
    assert_eq!(run(&home, &args)["is_complete"], true);
    assert_same(&source, &target);
    // Some hundred objects, and as many messages: they do not wait for each other.
    assert!(began.elapsed() < Duration::from_mins(5), "{:?}", began.elapsed());
    let complaint = fails(&mut home.kura(&["replicate", "serve", "copies", "--listen", "0.0.0.0:0"]));
    assert!(complaint.contains("--cert"), "{complaint}");
}

/// Whoever comes to the wrong door, or does not know who is behind it, is told so in one line and does not wait.
fn doors(home: &Home, uri: &str, port: u16, token: [&str; 2]) {
    let (_plain, address) = serve(home, "plain", &[]);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = |scheme: &str, port: u16| format!("{scheme}://127.0.0.1:{port}/a");
    let silent_port = silent.local_addr().expect("its address").port();
    let trusted = ["--target-ca", "pki/ca-cert.pem"];
    let cases = [
        (uri, &[][..], "--target-ca"),
        (uri, &["--target-ca", "others/ca-cert.pem"], "it is not the authority that --target-ca names"),
        (uri, &["--target-ca", "nothing.pem"], "nothing.pem"),
        (&at("kura", port), &[], "is it TLS that is spoken there, kuras://?"),
        (&format!("{}/a", address.replace("kura://", "kuras://")), &trusted, "and not kura://?"),
        (&at("kura", silent_port), &["--timeout", "1s"], "does not answer within 1 s"),
        (&at("kuras", silent_port), &[&trusted[..], &["--timeout", "1s"]].concat(), "does not answer"),
        ("kura://192.0.2.1:7402/a", &[], "--allow-plain"),
    ];
    for (target, more, expected) in cases {
        let began = Instant::now();
        let complaint = fails(&mut home.kura(&[&["replicate", "run", "source", target], &token[..], more].concat()));
        assert!(complaint.contains(expected) && complaint.lines().count() == 1, "{target} {more:?}: {complaint}");
        assert!(began.elapsed() < Duration::from_secs(50), "{target} {more:?}: {:?}", began.elapsed());
    }
    assert!(!home.path("copies/a").exists() && !home.path("plain/a").exists());
}
