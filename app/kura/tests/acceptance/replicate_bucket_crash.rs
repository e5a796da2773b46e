//! `kill -9` of the source, of the target and of the run itself, and the link cut, at random moments of copying a bucket.
//!
//! Whatever happened, the next run completes, the copy is what the bucket is, and nothing is left over.

use crate::crash::Random;
use crate::harness::{Home, Server};
use crate::link::Link;
use crate::object_cli::bytes;
use crate::replicate_bucket::json;
use crate::s3::Key;
use serde_json::{Value, json as line};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

const ROUNDS: u32 = 8;
const KEYS: u64 = 40;
const LARGE: usize = 18_000_000;

struct World {
    here: Home,
    there: Home,
    source: Server,
    target: Server,
    link: Link,
    random: Random,
}

impl World {
    fn new() -> Self {
        let (here, there) = (Home::new(), Home::new());
        let random = Random(std::process::id().into());
        println!("seed {}", random.0);
        let (source, target) = (here.serve(), there.serve());
        let key = Key::of(&target);
        let text = format!("[default]\naws_access_key_id={}\naws_secret_access_key={}\n", key.id, key.secret);
        std::fs::write(here.path("credentials"), text).expect("the credentials");
        here.ok(&["bucket", "create", "photos"]);
        there.ok(&["bucket", "create", "copy"]);
        let link = Link::new();
        link.to.store(s3_port(&target), Ordering::SeqCst);
        let url = format!("http://127.0.0.1:{}/copy", link.port);
        here.ok(&["replicate", "add", "dr", "bucket:photos", &url, "--target-credentials", "credentials"]);
        Self { here, there, source, target, link, random }
    }

    /// Stores and deletes here and there, together.
    fn work(&mut self) {
        let mut steps = String::new();
        for number in 0..KEYS {
            let key = format!("photos/{number:02}");
            let step = match self.random.below(5) {
                0 => line!({ "delete": key }),
                1 => line!({ "put": key, "text": "x".repeat(self.random.below(200_000) as usize) }),
                2 => line!({ "put": key, "text": "the same" }),
                _ => continue,
            };
            steps.extend([step.to_string(), "\n".into()]);
        }
        if self.random.below(3) == 0 {
            std::fs::write(self.here.path("large"), bytes(self.random.next(), LARGE)).expect("a file");
            steps.extend([line!({ "put": "photos/large", "file": "large" }).to_string(), "\n".into()]);
        }
        if !steps.is_empty() {
            std::fs::write(self.here.path("steps"), steps).expect("a batch");
            self.here.ok(&["object", "batch", "steps"]);
        }
    }

    /// A run that something happens to. Returns whether it was complete all the same.
    fn disturbed(&mut self) -> bool {
        let chosen = self.random.below(4);
        if chosen == 0 {
            self.link.left_bytes.store(self.random.below(20 << 20), Ordering::SeqCst);
        }
        // The process itself, not what would watch it.
        let mut run = Command::new(env!("CARGO_BIN_EXE_kura"))
            .args(["replicate", "run", "dr", "--quiet"])
            .current_dir(self.here.path("."))
            .stderr(Stdio::null())
            .spawn()
            .expect("kura");
        std::thread::sleep(Duration::from_millis(self.random.below(400)));
        match chosen {
            0 => {}
            1 => run.kill().expect("kill -9 of the run"),
            2 => self.source.kill(),
            _ => self.target.kill(),
        }
        let done = run.wait().expect("the run");
        self.link.left_bytes.store(u64::MAX, Ordering::SeqCst);
        match chosen {
            2 => self.source = self.here.serve(),
            3 => {
                self.target = self.there.serve();
                self.link.to.store(s3_port(&self.target), Ordering::SeqCst);
            }
            _ => {}
        }
        done.success()
    }

    fn verifies(&self) -> bool {
        self.here.ok(&["replicate", "verify", "dr"]).contains("nothing differs")
    }
}

pub fn s3_port(server: &Server) -> u16 {
    let url = crate::s3::url(server);
    url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

#[test]
fn a_bucket_is_copied_in_the_end_whatever_is_killed() {
    let mut world = World::new();
    let mut complete = 0;
    for _ in 0..ROUNDS {
        world.work();
        if world.disturbed() {
            complete += 1;
            assert!(world.verifies(), "a run that was complete left something out");
        }
    }
    println!("{complete} runs were complete although something was killed");
    let last = json(&world.here, &["replicate", "run", "dr"]);
    assert_eq!((&last["is_complete"], &last["failed"]), (&true.into(), &0.into()), "{last}");
    assert!(world.verifies());
    assert!(!world.here.data().join("replicate/dr/uploads").exists());
    assert_eq!(json(&world.here, &["snapshot", "list", "objects"]), Value::Array(Vec::new()), "no snapshot is left");
    world.here.ok(&["check"]);
    world.there.ok(&["check"]);
}
