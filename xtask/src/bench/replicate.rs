//! Copies of file trees: kura beside rsync, fpsync, xargs and rclone, each with four workers where it has workers.
//!
//! Every round, each side in its turn makes a copy anew, does it again with nothing changed, and again with one per cent
//! changed. All contents are in the page cache.

use super::report::{Verdict, median, verdicts};
use super::{kura, machine};
use crate::{needs, shell};
use anyhow::{Result, bail};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// How often each measurement is made; medians are compared.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only these trees: d1, d2, d3.
    #[arg(long, value_delimiter = ',', default_values = ["d1", "d2", "d3"])]
    tree: Vec<String>,
    /// Only sides whose name has this in it.
    #[arg(long)]
    side: Option<String>,
    /// The kura to measure, instead of building it.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where the trees lie: the file system to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
}

const SIDES: [&str; 11] = [
    "rsync -a",
    "xargs rsync",
    "fpsync",
    "rclone",
    "kura, rsync by size",
    "kura, rsync balanced",
    "kura",
    "kura, durable",
    "kura, tcp",
    "kura, in place",
    "kura, tcp, in place",
];
const PHASES: [&str; 3] = ["cold", "unchanged", "1 % changed"];

/// Seconds, by tree, phase and side.
type Seconds = BTreeMap<(String, &'static str, &'static str), Vec<f64>>;

/// Measures, prints and keeps the result.
pub fn run(args: &Args) -> Result<()> {
    needs::ensure()?;
    let facts = machine::facts();
    let binary = args.binary.clone().map_or_else(kura::build, Ok)?;
    let folder = tempfile::Builder::new().prefix("replicate-").tempdir_in(match &args.dir {
        Some(dir) => dir.clone(),
        None => shell::target("bench")?,
    })?;
    let place = Place { binary, folder: folder.path().to_owned() };
    let sides: Vec<&'static str> =
        SIDES.into_iter().filter(|side| args.side.as_ref().is_none_or(|part| side.contains(&**part))).collect();
    let mut seconds = Seconds::new();
    let serving = place.serve()?;
    for tree in &args.tree {
        for round in 0..args.rounds {
            place.round(tree, round, &sides, &mut seconds)?;
        }
    }
    drop(serving);
    println!("{}\n\n{}", machine::line(&facts), table(&args.tree, &sides, &seconds));
    let judged = judge(&seconds);
    println!("{}", verdicts(&judged));
    let rows: Vec<_> =
        seconds.iter().map(|((t, p, s), v)| json!({"tree": t, "phase": p, "side": s, "seconds": v})).collect();
    let file = shell::target("bench")?.join("replicate.json");
    fs::write(&file, serde_json::to_string_pretty(&json!({"bench": "replicate", "machine": facts, "samples": rows}))?)?;
    println!("every sample is in {}", file.display());
    Ok(())
}

struct Place {
    binary: PathBuf,
    folder: PathBuf,
}

/// A server that ends with the bench.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where `kura replicate serve` listens.
const ADDRESS: &str = "127.0.0.1:17402";

impl Place {
    fn serve(&self) -> Result<Serving> {
        let root = self.folder.join("served");
        fs::create_dir_all(&root)?;
        let mut command = Command::new(&self.binary);
        command.args(["replicate", "serve", "--listen", ADDRESS]).arg(&root).stdout(Stdio::null());
        let serving = Serving(command.spawn()?);
        while std::net::TcpStream::connect(ADDRESS).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(serving)
    }

    /// Every side once: a copy anew, the same again, and again after a change. A copy does not outlive its side's turn, for
    /// what the page cache can hold is little.
    fn round(&self, tree: &str, round: usize, sides: &[&'static str], seconds: &mut Seconds) -> Result<()> {
        let source = self.folder.join("source");
        remove(&source)?;
        grow(tree, &source)?;
        for index in 0..sides.len() {
            // Each round begins with another side, so that none always follows the same neighbour.
            let side = sides[(index + round) % sides.len()];
            for name in ["copies", "state", "served/copy"] {
                remove(&self.folder.join(name))?;
            }
            for phase in PHASES {
                if phase == PHASES[2] {
                    change(tree, &source, round * sides.len() + index)?;
                }
                settle()?;
                let mut command = self.command(side, &source)?;
                let began = Instant::now();
                let output = command.stdin(Stdio::null()).output()?;
                let took = began.elapsed().as_secs_f64();
                if !output.status.success() {
                    bail!("{side}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
                }
                eprintln!("round {} {tree} {phase:12} {side:22} {took:7.3} s", round + 1);
                seconds.entry((tree.to_owned(), phase, side)).or_default().push(took);
            }
        }
        Ok(())
    }

    /// What a side is started as.
    fn command(&self, side: &str, source: &Path) -> Result<Command> {
        let target = self.folder.join("copies").join(side.replace([' ', ','], "-"));
        fs::create_dir_all(&target)?;
        let (from, to) = (source.display(), target.display());
        let shell = |line: String| shell::command("sh", ["-c".to_owned(), line]);
        let kura = |more: &[&str], to: String| {
            let mut command = Command::new(&self.binary);
            command.args(["replicate", "run", "--quiet", "--data"]).arg(self.folder.join("state").join(side));
            command.arg(source).arg(to).args(more);
            command
        };
        let local = || to.to_string();
        Ok(match side {
            "rsync -a" => shell(format!("rsync -a --delete {from}/ {to}/")),
            "xargs rsync" => shell(format!("cd {from} && ls -A | xargs -P4 -I@ rsync -a --delete ./@ {to}/")),
            "fpsync" => shell(format!("fpsync -n 4 -f 1000 -t {to}.fpsync {from}/ {to}/")),
            "rclone" => shell(format!("rclone sync --links --transfers 4 --checkers 4 {from} {to} 2>&1")),
            "kura, rsync by size" => kura(&["--with", "rsync", "--split", "size-aware", "--no-sync"], local()),
            "kura, rsync balanced" => kura(&["--with", "rsync", "--no-sync"], local()),
            "kura" => kura(&["--no-sync"], local()),
            "kura, durable" => kura(&[], local()),
            "kura, in place" => kura(&["--no-sync", "--in-place"], local()),
            "kura, tcp" | "kura, tcp, in place" => {
                let token = self.folder.join("served.token");
                let more: &[&str] = if side == "kura, tcp" { &["--no-sync"] } else { &["--no-sync", "--in-place"] };
                let mut command = kura(more, format!("kura://{ADDRESS}/copy"));
                command.arg("--target-token-file").arg(token);
                command
            }
            side => bail!("no side {side}"),
        })
    }
}

fn remove(path: &Path) -> Result<()> {
    if path.exists() { Ok(fs::remove_dir_all(path)?) } else { Ok(()) }
}

/// Nothing of one side's writes may be left to do while another one is measured.
fn settle() -> Result<()> {
    shell::output(&mut Command::new("sync")).map(drop)
}

/// Bytes that do not compress, each time others.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }

    fn file(&mut self, path: &Path, size_bytes: usize) -> Result<()> {
        let file = File::create(path)?;
        let mut buffer = vec![0; size_bytes.min(1 << 20)];
        for offset in (0..size_bytes).step_by(buffer.len().max(1)) {
            let length = buffer.len().min(size_bytes - offset);
            self.fill(&mut buffer[..length]);
            file.write_all_at(&buffer[..length], offset as u64)?;
        }
        Ok(())
    }
}

const MB: usize = 1_000_000;

/// 10 x 100 MB in one directory and 4,686 x 100 KB in a tree; 30,000 x 4 KB in 30 directories; 2 x 1 GiB.
fn grow(tree: &str, root: &Path) -> Result<()> {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    fs::create_dir_all(root)?;
    match tree {
        "d1" => {
            fs::create_dir(root.join("big"))?;
            for file in 0..10 {
                noise.file(&root.join(format!("big/{file}")), 100 * MB)?;
            }
            let mut level = vec![root.join("tree")];
            for depth in 0..=4 {
                let mut next = Vec::new();
                for directory in level {
                    fs::create_dir(&directory)?;
                    for file in 0..6 {
                        noise.file(&directory.join(format!("f{file}")), MB / 10)?;
                    }
                    next.extend((0..5).map(|inner| directory.join(format!("d{inner}"))));
                }
                level = if depth < 4 { next } else { Vec::new() };
            }
        }
        "d2" => {
            for directory in 0..30 {
                let directory = root.join(format!("d{directory}"));
                fs::create_dir(&directory)?;
                for file in 0..1000 {
                    noise.file(&directory.join(format!("f{file}")), 4096)?;
                }
            }
        }
        "d3" => {
            for file in 0..2 {
                noise.file(&root.join(format!("{file}.img")), 1 << 30)?;
            }
        }
        tree => bail!("no tree {tree}: there are d1, d2 and d3"),
    }
    Ok(())
}

/// One per cent of the small files are written anew; of the large ones, of their blocks of 4 KiB, in place.
fn change(tree: &str, root: &Path, round: usize) -> Result<()> {
    let mut noise = Noise(77 + round as u64);
    if tree == "d3" {
        for file in 0..2 {
            let file = File::options().write(true).open(root.join(format!("{file}.img")))?;
            let mut block = vec![0; 4096];
            for _ in 0..(1_u64 << 30) / 4096 / 100 {
                noise.fill(&mut block);
                let at = u64::from_le_bytes(block[..8].try_into()?) % ((1 << 30) / 4096);
                file.write_all_at(&block, at * 4096)?;
            }
        }
        return Ok(());
    }
    let root = if tree == "d1" { root.join("tree") } else { root.to_owned() };
    let files = shell::output(Command::new("find").arg(root).args(["-type", "f"]))?;
    let mut files: Vec<&str> = files.lines().collect();
    files.sort_unstable();
    for path in files.iter().step_by(100) {
        noise.file(Path::new(path), fs::metadata(path)?.len() as usize)?;
    }
    Ok(())
}

/// One row a side: seconds cold / unchanged / changed of each tree.
fn table(trees: &[String], sides: &[&'static str], seconds: &Seconds) -> String {
    let mut text = format!(
        "| seconds: {} | {} |\n| --- |{}\n",
        PHASES.join(" / "),
        trees.join(" | "),
        " --- |".repeat(trees.len())
    );
    for side in sides {
        let cells = trees.iter().map(|tree| {
            let of = |phase| middle(seconds, tree, phase, side).map_or("-".to_owned(), |value| format!("{value:.3}"));
            PHASES.map(of).join(" / ")
        });
        text += &["| ", side, " | ", &cells.collect::<Vec<_>>().join(" | "), " |\n"].concat();
    }
    text
}

fn middle(seconds: &Seconds, tree: &str, phase: &'static str, side: &'static str) -> Option<f64> {
    Some(median(seconds.get(&(tree.to_owned(), phase, side))?.iter().copied()))
}

/// What is asked: seconds at most.
const AIMS: [(&str, &str, &str, f64); 8] = [
    ("d1", "cold", "kura", 1.3),
    ("d2", "cold", "kura", 1.2),
    ("d1", "unchanged", "kura", 0.05),
    ("d2", "unchanged", "kura", 0.05),
    ("d3", "unchanged", "kura", 0.05),
    ("d3", "1 % changed", "kura", 1.6),
    ("d3", "1 % changed", "kura, tcp", 1.6),
    ("d3", "1 % changed", "kura, tcp, in place", 1.6),
];

fn judge(seconds: &Seconds) -> Vec<Verdict> {
    let mut judged = Vec::new();
    for (tree, phase, side, most) in AIMS {
        if let Some(value) = middle(seconds, tree, phase, side) {
            let aim = format!("{tree} {phase}: {side} at most {most} s");
            judged.push(Verdict { aim, ours: format!("{value:.3} s"), holds: value <= most });
        }
    }
    // First in every column, among those that make nothing durable.
    for (tree, phase) in ["d1", "d2", "d3"].into_iter().flat_map(|tree| PHASES.map(|phase| (tree, phase))) {
        let peers = SIDES[..4].iter().filter_map(|side| Some((middle(seconds, tree, phase, side)?, side)));
        let best = peers.min_by(|one, other| one.0.total_cmp(&other.0));
        for (side, factor) in [("kura", 1.0), ("kura, rsync balanced", 1.05)] {
            if let (Some((peer, name)), Some(ours)) = (best, middle(seconds, tree, phase, side)) {
                let aim = format!("{tree} {phase}: {side} at most {factor} x the best of the others ({name})");
                judged.push(Verdict { aim, ours: format!("{:.2} x", ours / peer), holds: ours <= factor * peer });
            }
        }
    }
    judged
}
