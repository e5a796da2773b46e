//! What a client does to a side, done by fio.

use crate::shell;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::PathBuf;
use std::thread::ScopedJoinHandle;

/// Where fio finds the bytes.
#[derive(Clone, Debug)]
pub enum Target {
    /// A file, by `io_uring` with `O_DIRECT`.
    File(PathBuf),
    /// An NBD export.
    Uri(String),
}

/// What a work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Each block at most once, over one connection: the work ends early when all are written.
    WriteOnce,
    /// Each write followed by a flush.
    WriteSync,
    /// Each block once, whatever that takes, and a flush behind the last, which counts.
    Fill,
}

/// One kind of load.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Its name in tables and for `--only`.
    pub name: &'static str,
    pub access: Access,
    /// True for random offsets, false for one after another.
    pub random: bool,
    pub block_kib: u32,
    /// Requests in flight on each connection.
    pub depth: u32,
    pub connections: u32,
}

impl Work {
    /// Blocks of 4 KiB at random.
    pub const fn random(name: &'static str, access: Access, depth: u32, connections: u32) -> Self {
        Self { name, access, random: true, block_kib: 4, depth, connections }
    }

    /// Blocks of 128 KiB, one after another.
    pub const fn sequential(name: &'static str, access: Access) -> Self {
        Self { name, access, random: false, block_kib: 128, depth: 16, connections: 1 }
    }
}

/// What fio saw. Latencies are of the I/O, and of the flush where each write has one.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub ios: f64,
    pub iops: f64,
    pub mb_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// The longest one.
    pub max_us: f64,
}

/// Writes every byte of the target once, so that no side serves holes.
pub fn fill(target: &Target, size_bytes: u64) -> Result<()> {
    let options = ["--rw=write", "--bs=1M", "--iodepth=4", "--end_fsync=1", "--refill_buffers", "--output-format=json"];
    let mut command = shell::command("fio", ["--name=fill"]);
    command.args(options).arg(format!("--size={size_bytes}")).args(where_to(target));
    shell::output(&mut command).map(drop)
}

/// Writes every block of 4 KiB of the target once more, in random order.
pub fn overwrite(target: &Target, size_bytes: u64) -> Result<()> {
    let options = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--end_fsync=1", "--refill_buffers"];
    let mut command = shell::command("fio", ["--name=overwrite", "--output-format=json"]);
    command.args(options).arg(format!("--size={size_bytes}")).args(where_to(target));
    shell::output(&mut command).map(drop)
}

/// Does `work` for `seconds`.
pub fn run(work: &Work, target: &Target, size_bytes: u64, seconds: u32) -> Result<Figures> {
    figures(work, &job(work, target, size_bytes, seconds, &[])?).with_context(|| format!("{} on {target:?}", work.name))
}

/// Does `work` for `seconds` on all targets at once, with a client each, which keeps to this many requests a second
/// where there is a rate: what they did together, and the worst of their latencies.
pub fn run_together(
    work: &Work,
    targets: &[Target],
    size_bytes: u64,
    seconds: u32,
    rate: Option<u32>,
) -> Result<Figures> {
    let more: Vec<String> = rate.iter().map(|rate| format!("--rate_iops={rate}")).collect();
    let client = |target| {
        let job = job(work, target, size_bytes, seconds, &more)?;
        figures(work, &job).with_context(|| format!("{} on {target:?}", work.name))
    };
    let each: Vec<Figures> = std::thread::scope(|scope| {
        let clients: Vec<_> = targets.iter().map(|target| scope.spawn(move || client(target))).collect();
        let ended =
            |client: ScopedJoinHandle<'_, _>| client.join().unwrap_or_else(|_| bail!("a client's thread panicked"));
        clients.into_iter().map(ended).collect::<Result<_>>()
    })?;
    let sum = |of: fn(&Figures) -> f64| each.iter().map(of).sum();
    let worst = |of: fn(&Figures) -> f64| each.iter().map(of).fold(0.0, f64::max);
    Ok(Figures {
        ios: sum(|figures| figures.ios),
        iops: sum(|figures| figures.iops),
        mb_s: sum(|figures| figures.mb_s),
        p50_us: worst(|figures| figures.p50_us),
        p99_us: worst(|figures| figures.p99_us),
        max_us: worst(|figures| figures.max_us),
    })
}

/// Reads at random at this many requests a second at most: how long they take, in microseconds, by per cent of them.
pub fn distribution(work: &Work, target: &Target, size_bytes: u64, seconds: u32, rate: u32) -> Result<Vec<(f64, f64)>> {
    let job = job(work, target, size_bytes, seconds, &[format!("--rate_iops={rate}")])?;
    let percentiles = job["read"]["clat_ns"]["percentile"].as_object().context("fio told no percentiles")?;
    let point = |(percent, ns): (&String, &Value)| Some((percent.parse().ok()?, ns.as_f64()? / 1000.0));
    let mut points: Vec<(f64, f64)> = percentiles.iter().filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(points)
}

/// What fio says of a job.
fn job(work: &Work, target: &Target, size_bytes: u64, seconds: u32, more: &[String]) -> Result<Value> {
    let result = tempfile::NamedTempFile::new()?;
    let mut command = shell::command("fio", [format!("--name={}", work.name)]);
    command.args(options(work, size_bytes, seconds)).args(more).args(where_to(target));
    command.arg("--output-format=json").arg(format!("--output={}", result.path().display()));
    shell::output(&mut command)?;
    let text = std::fs::read_to_string(result.path())?;
    // fio's nbd engine greets on the same stream.
    let json = text.find('{').map(|at| &text[at..]).context("fio printed no result")?;
    let mut result: Value = serde_json::from_str(json).context("fio's result")?;
    let job = result["jobs"][0].take();
    if job["error"] != 0 {
        bail!("fio met error {}", job["error"]);
    }
    Ok(job)
}

fn options(work: &Work, size_bytes: u64, seconds: u32) -> Vec<String> {
    let pattern = match (work.random, work.access) {
        (true, Access::Read) => "randread",
        (true, _) => "randwrite",
        (false, Access::Read) => "read",
        (false, _) => "write",
    };
    let mut options = vec![
        format!("--rw={pattern}"),
        format!("--bs={}k", work.block_kib),
        format!("--iodepth={}", work.depth),
        format!("--numjobs={}", work.connections),
        format!("--size={size_bytes}"),
        format!("--runtime={seconds}"),
        "--group_reporting".into(),
        "--randrepeat=0".into(),
    ];
    match work.access {
        // fio keeps a map of what it wrote, and ends when all is.
        Access::WriteOnce => return options,
        Access::Fill => {
            options.retain(|option| !option.starts_with("--runtime"));
            options.push("--end_fsync=1".into());
            return options;
        }
        // fio's nbd engine refuses --fdatasync; both mean one flush on the wire.
        Access::WriteSync => options.push("--fsync=1".into()),
        Access::Read | Access::Write => {}
    }
    options.extend(["--time_based".into(), "--norandommap".into()]);
    options
}

fn where_to(target: &Target) -> Vec<String> {
    match target {
        Target::File(path) => {
            vec!["--ioengine=io_uring".into(), "--direct=1".into(), format!("--filename={}", path.display())]
        }
        Target::Uri(uri) => vec!["--ioengine=nbd".into(), format!("--uri={uri}")],
    }
}

fn figures(work: &Work, job: &Value) -> Result<Figures> {
    let side = &job[if work.access == Access::Read { "read" } else { "write" }];
    let timed = if work.access == Access::WriteSync { &job["sync"]["lat_ns"] } else { &side["clat_ns"] };
    let number =
        |value: &Value| value.as_f64().with_context(|| format!("a number is missing in fio's result: {value}"));
    let percentile = |percent: &str| Ok::<f64, anyhow::Error>(number(&timed["percentile"][percent])? / 1000.0);
    Ok(Figures {
        ios: number(&side["total_ios"])?,
        iops: number(&side["iops"])?,
        mb_s: number(&side["bw_bytes"])? / 1e6,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        max_us: number(&timed["max"])? / 1000.0,
    })
}
