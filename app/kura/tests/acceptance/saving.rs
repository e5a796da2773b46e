//! How what a snapshot needs is saved, by real clients: changed from start to start, and put in order when nobody asks for anything.

use crate::crash::Random;
use crate::harness::{Home, Server, eventually, fails, ok, tool};
use crate::nbd::{Client, FLUSH, WRITE};
use crate::serving::json;
use crate::snapshots::{checksum, soon};
use std::collections::BTreeMap;
use std::time::Duration;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 2048;

/// A server, and what its volume `v`, its snapshots and clones hold.
struct World {
    home: Home,
    images: BTreeMap<String, Vec<u8>>,
    random: Random,
}

impl World {
    fn new(seed: u64) -> Self {
        Self { home: Home::new(), images: BTreeMap::new(), random: Random(seed) }
    }

    /// A server that saves in this way.
    fn serve(&self, saving: &str) -> Server {
        let config = format!("demo = '0'\npool.saving = '{saving}'\n");
        std::fs::write(self.home.path("kura.toml"), config).expect("a configuration");
        self.home.serve_with(&["--config", "kura.toml"])
    }

    fn create(&mut self) {
        self.home.ok(&["volume", "create", "v", "--size", &(BLOCKS * BLOCK).to_string()]);
        self.images.insert("v".into(), vec![0; (BLOCKS * BLOCK) as usize]);
    }

    fn snapshot(&mut self, name: &str) {
        self.home.ok(&["snapshot", "create", name]);
        let (of, _) = name.rsplit_once('@').expect("VOLUME@NAME");
        self.images.insert(name.to_owned(), self.images[of].clone());
    }

    /// Overwrites these blocks, one after the other.
    fn overwrite(&mut self, name: &str, blocks: impl IntoIterator<Item = u64>) {
        let mut client = Client::connect(&self.home.socket(), name).expect("a connection");
        let image = self.images.get_mut(name).expect("an image");
        for block in blocks {
            let at = (block * BLOCK) as usize;
            let data = &mut image[at..at + BLOCK as usize];
            data.chunks_mut(8).for_each(|word| word.copy_from_slice(&self.random.next().to_le_bytes()));
            client.call(WRITE, 0, block * BLOCK, BLOCK as u32, data).expect("a write");
        }
        client.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    }

    /// So many blocks here and there, some of them more than once.
    fn scatter(&mut self, name: &str, count: u64) {
        let blocks: Vec<u64> = (0..count).map(|_| self.random.below(BLOCKS)).collect();
        self.overwrite(name, blocks);
    }

    /// All blocks, in an order of no kind.
    fn shuffled(&mut self) -> Vec<u64> {
        let mut blocks: Vec<u64> = (0..BLOCKS).collect();
        (1..BLOCKS).rev().for_each(|last| blocks.swap(last as usize, self.random.below(last + 1) as usize));
        blocks
    }

    /// Reads everything by `nbdcopy` and compares the checksums.
    fn compare(&self, when: &str) {
        for (name, image) in &self.images {
            let path = self.home.path("image");
            std::fs::write(&path, image).expect("a file");
            let expected = ok(tool("sh").args(["-c", &format!("sha256sum < '{}'", path.display())]));
            assert_eq!(checksum(&self.home, name), expected, "{name} {when}");
        }
    }

    /// Compares what a backup tool is told of changes with these runs: a block, and how many.
    fn changed(&self, since: &str, export: &str, expected: &[(u64, u64)]) {
        let changed = crate::snapshots::mapped(&self.home, &format!("kura:changed-since:{since}"), export);
        let expected: Vec<_> = expected.iter().map(|(block, count)| (block * BLOCK, count * BLOCK)).collect();
        assert_eq!(changed, expected, "{since} to {export}");
    }

    /// Blocks that were put in order since the start, as the controllers tell.
    fn ordered(&self) -> u64 {
        let controllers = json(&self.home, &["controller", "list"]);
        let all = controllers.as_array().expect("controllers").iter();
        all.map(|one| one["ordered_blocks"].as_u64().expect("a number")).sum()
    }
}

/// Snapshots made under one way of saving are read, written to, rolled back to and deleted under the other one.
#[test]
fn saving_is_changed_at_restarts_with_snapshots_there() {
    let mut world = World::new(17);
    let mut server = world.serve("copy");
    world.create();
    world.overwrite("v", 0..BLOCKS);
    for (round, saving) in ["redirect", "copy", "redirect", "copy"].into_iter().enumerate() {
        world.snapshot(&format!("v@{round}"));
        world.scatter("v", 400);
        // To a snapshot made a start or two ago, too.
        world.scatter(&format!("v@{}", round / 2), 50);
        world.compare(&format!("before {saving} in round {round}"));
        if round < 2 {
            assert!(server.stop().success());
        } else {
            server.kill();
        }
        server = world.serve(saving);
        world.compare(&format!("after a restart with {saving} in round {round}"));
        world.scatter("v", 400);
        world.compare(&format!("with {saving} in round {round}"));
    }
    soon(&world.home, &["snapshot", "rollback", "v@1"]);
    world.images.insert("v".into(), world.images["v@1"].clone());
    world.compare("after a roll-back");
    for name in ["v@2", "v@0"] {
        soon(&world.home, &["snapshot", "delete", name]);
        world.images.remove(name);
    }
    world.scatter("v", 400);
    server.kill();
    let _server = world.serve("redirect");
    world.compare("in the end");
    world.home.ok(&["check"]);
    for name in ["v@1", "v@3"] {
        soon(&world.home, &["snapshot", "delete", name]);
    }
    let held = || json(&world.home, &["pool", "status"])["snapshot_bytes"].as_u64();
    eventually(Duration::from_mins(2), "what snapshots held is given back", || held() == Some(0));
}

#[test]
fn redirected_blocks_are_put_in_order_when_clients_are_quiet() {
    for saving in ["redirect", "copy"] {
        let mut world = World::new(23);
        let mut server = world.serve(saving);
        world.create();
        world.overwrite("v", 0..BLOCKS);
        world.snapshot("v@a");
        let blocks = world.shuffled();
        world.overwrite("v", blocks);
        if saving == "redirect" {
            eventually(Duration::from_mins(2), "all blocks are at home", || world.ordered() >= BLOCKS);
        } else {
            // They never left.
            std::thread::sleep(Duration::from_secs(2));
        }
        world.compare("in order");
        assert_eq!(world.ordered(), if saving == "redirect" { BLOCKS } else { 0 }, "{saving}: each of them, once");
        let metrics = crate::serving::get(server.port("http"), "/metrics");
        assert!(metrics.contains("kura_controller_ordered_blocks_total"), "{metrics}");
        // What is in order is so after a crash, and what is written then is put in order again, or not.
        server.kill();
        server = world.serve(saving);
        world.compare("after a crash");
        world.scatter("v", 100);
        world.snapshot("v@b");
        world.scatter("v", 100);
        world.compare("after another snapshot");
        world.home.ok(&["check"]);
        drop(server);
    }
}

/// A snapshot that was written to is kept as it is by one of its own, and becomes that again.
#[test]
fn a_snapshot_has_snapshots() {
    let mut world = World::new(31);
    let mut server = world.serve("redirect");
    world.create();
    world.scatter("v", 400);
    world.snapshot("v@a");
    world.overwrite("v", [1, 2, 3]);
    world.overwrite("v@a", [3, 4]);
    world.snapshot("v@a@b");
    world.overwrite("v@a", [4, 5]);
    world.overwrite("v@a@b", [6]);
    world.snapshot("v@a@b@c");
    world.overwrite("v@a@b", [7]);
    world.compare("when all are made");
    let listed = json(&world.home, &["snapshot", "list"]);
    let names: Vec<_> =
        listed.as_array().expect("snapshots").iter().map(|one| [&one["volume"], &one["name"]]).collect();
    assert_eq!(names, [["v", "v@a"], ["v@a", "v@a@b"], ["v@a@b", "v@a@b@c"]]);
    for (since, export, expected) in
        [("v@a@b", "v@a", vec![(4, 4)]), ("v@a@b@c", "v@a@b", vec![(7, 1)]), ("v@a", "v@a@b@c", vec![(4, 3)])]
    {
        world.changed(since, export, &expected);
    }

    server.kill();
    server = world.serve("copy");
    world.compare("after a crash");
    world.overwrite("v", [4, 9]);
    world.overwrite("v@a", [9, 10]);
    world.compare("saved by copy");
    soon(&world.home, &["snapshot", "rollback", "v@a@b"]);
    world.images.insert("v@a".into(), world.images["v@a@b"].clone());
    world.compare("after a roll-back");
    soon(&world.home, &["snapshot", "rollback", "v@a"]);
    world.images.insert("v".into(), world.images["v@a"].clone());
    world.compare("after a roll-back of the volume");

    let refused = fails(&mut world.home.kura(&["snapshot", "delete", "v@a"]));
    assert!(refused.contains("v@a@b") && refused.contains("delete them first"), "{refused}");
    for name in ["v@a@b@c", "v@a@b", "v@a"] {
        soon(&world.home, &["snapshot", "delete", name]);
        world.images.remove(name);
        world.compare(name);
    }
    world.home.ok(&["check"]);
    drop(server);
}

#[test]
fn a_clone_of_a_snapshot_has_snapshots() {
    let mut world = World::new(29);
    let mut server = world.serve("redirect");
    world.create();
    world.scatter("v", 400);
    world.snapshot("v@a");
    world.scatter("v", 100);
    world.home.ok(&["snapshot", "clone", "v@a", "c"]);
    world.images.insert("c".into(), world.images["v@a"].clone());
    world.overwrite("c", [3, 4, 9]);
    world.snapshot("c@x");
    world.overwrite("c", [9, 20]);
    world.overwrite("c@x", [30]);
    world.compare("when all are made");

    // What it came from is offered to backup tools.
    for (context, export, expected) in
        [("v@a", "c@x", vec![(3, 2), (9, 1), (30, 1)]), ("v@a", "c", vec![(3, 2), (9, 1), (20, 1)])]
    {
        world.changed(context, export, &expected);
    }

    server.kill();
    server = world.serve("redirect");
    world.compare("after a crash");
    soon(&world.home, &["snapshot", "rollback", "c@x"]);
    world.images.insert("c".into(), world.images["c@x"].clone());
    world.compare("after a roll-back");

    // Each goes when nothing is made of it any more.
    for (line, why) in [("volume delete v", "v: "), ("snapshot delete v@a", "c"), ("volume delete c", "c@x")] {
        let args: Vec<&str> = line.split(' ').collect();
        let refused = fails(&mut world.home.kura(&args));
        assert!(refused.contains("delete them first") && refused.contains(why), "{line}: {refused}");
    }
    for (line, name) in [("snapshot delete c@x", "c@x"), ("volume delete c", "c"), ("snapshot delete v@a", "v@a")] {
        soon(&world.home, &line.split(' ').collect::<Vec<_>>());
        world.images.remove(name);
        world.compare(line);
    }
    world.home.ok(&["check"]);
    drop(server);
}
