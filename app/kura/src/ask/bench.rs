//! `kura bench`: how fast a volume or the object store of a running server is for a client on this machine.
//!
//! A volume is asked over NBD and the object store over REST, by as many clients at once as is said, each with one request at a
//! time. Unless a volume is named, both are measured on something that is made for it and deleted.

use super::is_here;
use super::object::empty;
use crate::bar::Bar;
use crate::cli::{BenchCommand, BenchLoad};
use crate::misuse::Misuse;
use crate::show::{Out, table};
use crate::signals::{Ending, Endings, TWICE};
use crate::size::Size;
use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use futures::{FutureExt, StreamExt, stream};
use kura_admin::{Client, ClientError, NewVolume, ObjectHead, ProblemKind, Status};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is written and read in one go where bytes a second are measured.
const LARGE_BYTES: usize = 1 << 20;
/// Of a volume and of objects that are made for it.
const VOLUME_BYTES: u64 = 256 << 20;

/// One measurement.
#[derive(Serialize)]
struct Row {
    what: &'static str,
    requests: u64,
    bytes: u64,
    seconds: f64,
    iops: f64,
    bytes_per_s: f64,
    median_us: u64,
    p99_us: u64,
}

impl Row {
    fn of(what: &'static str, request_bytes: usize, took: Duration, mut each: Vec<Duration>) -> Self {
        each.sort_unstable();
        let at = |percent: usize| each.get(each.len() * percent / 100).map_or(0, |time| time.as_micros() as u64);
        let (requests, seconds) = (each.len() as u64, took.as_secs_f64());
        let bytes = requests * request_bytes as u64;
        Self {
            what,
            requests,
            bytes,
            seconds,
            iops: requests as f64 / seconds,
            bytes_per_s: bytes as f64 / seconds,
            median_us: at(50),
            p99_us: at(99),
        }
    }
}

fn text(rows: &[Row]) -> String {
    let row = |row: &Row| {
        vec![
            row.what.to_owned(),
            format!("{:.0}", row.iops),
            format!("{:.1}", row.bytes_per_s / f64::from(1 << 20)),
            format!("{:.2} ms", row.median_us as f64 / 1000.0),
            format!("{:.2} ms", row.p99_us as f64 / 1000.0),
            row.requests.to_string(),
        ]
    };
    table(&["WHAT", "REQUESTS/S>", "MIB/S>", "MEDIAN>", "99 %>", "REQUESTS>"], rows.iter().map(row))
}

/// Carries a measurement out.
pub async fn bench(client: &Client, out: Out, command: BenchCommand) -> Result<()> {
    if let BenchCommand::Volume { .. } = command {
        // Nobody but its own machine reaches a volume without TLS.
        is_here(client)?;
    }
    let rows = match command {
        BenchCommand::Volume { name: Some(name), block, load } => {
            client.volume(&name).await?;
            of_volume(&client.status().await?, out, &name, (block, &load), false).await?
        }
        BenchCommand::Volume { name: None, block, load } => {
            let name = format!("bench-{}", std::process::id());
            let new = NewVolume {
                name: name.clone(),
                size_bytes: VOLUME_BYTES,
                layout: None,
                thick: false,
                read_only: false,
            };
            let mut interrupted = Interrupted::awaited()?;
            client.create_volume(&new).await?;
            let measuring = async { of_volume(&client.status().await?, out, &name, (block, &load), true).await };
            let rows = interrupted.or(measuring, GOES).await;
            // What was made for it goes, also where it failed.
            let deleting = async { Ok(client.delete_volume(&name, true).await?) };
            interrupted.or(deleting, &format!("volume {name} may be there still")).await?;
            rows?
        }
        BenchCommand::Object { size, load } => of_objects(client, out, size, &load).await?,
    };
    out.show(rows.as_slice(), text)
}

/// What is told of who has enough of a measurement.
const GOES: &str = "what was made for the measurement is deleted";

/// Ctrl-C and SIGTERM, which no longer end the process: what was made for a measurement is to go, unless one comes once more.
///
/// Awaited before anything is made, so that neither comes between the making and the measuring.
struct Interrupted {
    endings: Endings,
    /// When one came last.
    last: Option<Instant>,
}

impl Interrupted {
    fn awaited() -> Result<Self> {
        Ok(Self { endings: Endings::catch()?, last: None })
    }

    /// What `work` gives, unless either signal has come or comes meanwhile; then `left` says what becomes of it.
    async fn or<T>(&mut self, work: impl Future<Output = Result<T>>, left: &str) -> Result<T> {
        let mut work = pin!(work);
        loop {
            let what = tokio::select! {
                done = &mut work => return done,
                ending = self.endings.next() => if ending == Ending::Interrupt { "interrupted" } else { "ended" },
            };
            if self.last.replace(Instant::now()).is_none_or(|last| last.elapsed() >= TWICE) {
                bail!("{what}: {left}");
            }
        }
    }
}

/// Ends the clients of a measurement that is dropped: they run on threads, which nobody drops.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Where a volume is reached.
enum Door {
    Unix(PathBuf),
    Tcp(String),
}

impl Door {
    /// The first of the server's that this machine can use.
    fn of(status: &Status) -> Result<Self> {
        let unix = status.nbd.iter().filter_map(|uri| uri.split_once("socket="));
        let mut unix = unix.map(|(_, path)| PathBuf::from(percent_decode_str(path).decode_utf8_lossy().as_ref()));
        if let Some(path) = unix.find(|path| path.exists()) {
            return Ok(Self::Unix(path));
        }
        let tcp = status.nbd.iter().find_map(|uri| uri.strip_prefix("nbd://")?.split_once('/'));
        match tcp {
            Some((address, _)) => Ok(Self::Tcp(address.to_owned())),
            None => bail!(
                "the server has no NBD address that this machine reaches without TLS: run it on the server's machine"
            ),
        }
    }

    fn open(&self, export: &str) -> Result<kura_nbd::Client> {
        let (opened, at) = match self {
            Self::Unix(path) => (kura_nbd::Client::unix(path, export), path.display().to_string()),
            Self::Tcp(address) => (kura_nbd::Client::tcp(address, export), address.clone()),
        };
        opened.with_context(|| format!("NBD at {at}"))
    }
}

/// A kind of load on a volume.
#[derive(Clone, Copy)]
struct Load {
    what: &'static str,
    bytes: usize,
    write: bool,
    /// Anywhere, else one after the other.
    random: bool,
}

const fn load(what: &'static str, bytes: usize, write: bool, random: bool) -> Load {
    Load { what, bytes, write, random }
}

async fn of_volume(
    status: &Status,
    out: Out,
    name: &str,
    (block, how): (Size, &BenchLoad),
    may_write: bool,
) -> Result<Vec<Row>> {
    let small = block.0 as usize;
    ensure!((512..=32 << 20).contains(&small), Misuse(format!("--block {block}: give 512 to 32M")));
    let loads = [
        load("write, one after the other", LARGE_BYTES, true, false),
        load("read, one after the other", LARGE_BYTES, false, false),
        load("write, anywhere", small, true, true),
        load("read, anywhere", small, false, true),
    ];
    let (door, ended) = (Arc::new(Door::of(status)?), Arc::new(AtomicBool::new(false)));
    let _ends = Ends(Arc::clone(&ended));
    let mut rows = Vec::new();
    let loads: Vec<_> = loads.into_iter().filter(|load| may_write || !load.write).collect();
    let bar = Bar::time(out, "", how.time * loads.len() as u32);
    for load in loads {
        bar.say(load.what);
        let began = Instant::now();
        let clients = (0..how.clients).map(|number| {
            let (door, name, how, ended) = (Arc::clone(&door), name.to_owned(), how.clone(), Arc::clone(&ended));
            tokio::task::spawn_blocking(move || client_of((&door, &name), load, &how, number, &ended))
        });
        let each: Vec<Vec<Duration>> = bar
            .during(try_join_all(clients))
            .await?
            .into_iter()
            .collect::<Result<_>>()
            .with_context(|| format!("volume {name}"))?;
        rows.push(Row::of(load.what, load.bytes, began.elapsed(), each.concat()));
    }
    Ok(rows)
}

/// One client's requests, until its time is up: how long each took.
fn client_of(
    (door, name): (&Door, &str),
    load: Load,
    how: &BenchLoad,
    number: u16,
    ended: &AtomicBool,
) -> Result<Vec<Duration>> {
    let mut client = door.open(name)?;
    let places = client.size_bytes() / load.bytes as u64;
    ensure!(places > 0, "it is smaller than a request of {}", Size(load.bytes as u64));
    // Each begins elsewhere; random places come from a generator of its own.
    let mut at = u64::from(number) * places / u64::from(how.clients);
    let mut state = u64::from(number) + 1;
    // Not the same twice, so that nothing can be left out as known.
    let mut data: Vec<u8> = (0..load.bytes).map(|byte| (byte * 31 + usize::from(number)) as u8).collect();
    let (began, mut each) = (Instant::now(), Vec::new());
    while began.elapsed() < how.time && !ended.load(Ordering::Relaxed) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at = if load.random { (state >> 16) % places } else { (at + 1) % places };
        let asked = Instant::now();
        if load.write {
            data[..8].copy_from_slice(&state.to_le_bytes());
            client.write(at * load.bytes as u64, &data, false)?;
        } else {
            client.read(at * load.bytes as u64, &mut data)?;
        }
        each.push(asked.elapsed());
    }
    Ok(each)
}

async fn of_objects(client: &Client, out: Out, size: Size, how: &BenchLoad) -> Result<Vec<Row>> {
    ensure!((1..=64 << 20).contains(&size.0), Misuse(format!("--size {size}: give 1 to 64M")));
    let bucket = format!("bench-{}", std::process::id());
    let mut interrupted = Interrupted::awaited()?;
    client.create_bucket(&bucket).await?;
    let measured = interrupted.or(on_bucket(client, out, &bucket, size.0 as usize, how), GOES).await;
    // What was made for it goes, also where it failed.
    let deleting = async {
        loop {
            empty(client, out, &bucket, false, &mut 0).await?;
            match client.delete_bucket(&bucket).await {
                // What was on its way when the measurement ended arrives behind.
                Err(ClientError::Refused(problem)) if problem.kind == ProblemKind::Busy => {}
                deleted => return Ok(deleted?),
            }
        }
    };
    interrupted.or(deleting, &format!("bucket {bucket} may be there still")).await?;
    measured
}

async fn on_bucket(client: &Client, out: Out, bucket: &str, size_bytes: usize, how: &BenchLoad) -> Result<Vec<Row>> {
    let data = bytes::Bytes::from((0..size_bytes).map(|byte| (byte * 31) as u8).collect::<Vec<u8>>());
    let began = Instant::now();
    let puts = (0..how.clients).map(|number| {
        let data = data.clone();
        async move {
            let mut each = Vec::new();
            while began.elapsed() < how.time && (each.len() * size_bytes) < VOLUME_BYTES as usize {
                let asked = Instant::now();
                let piece = data.clone();
                let content = stream::once(async move { Ok(piece) }).boxed();
                let head = ObjectHead { content_type: None, metadata: Vec::new().into_iter().collect(), new: false };
                let key = format!("{number}/{}", each.len());
                client.write_object(bucket, &key, &head, Some(size_bytes as u64), content).await?;
                each.push(asked.elapsed());
            }
            anyhow::Ok(each)
        }
    });
    let bar = Bar::time(out, "put", how.time * 2);
    let put = bar.during(try_join_all(puts)).await?;
    bar.say("get");
    let puts = Row::of("put", size_bytes, began.elapsed(), put.concat());
    let began = Instant::now();
    let gets = put.iter().enumerate().map(|(number, stored)| async move {
        let mut each = Vec::new();
        for at in (0..stored.len()).cycle().take_while(|_| began.elapsed() < how.time) {
            let asked = Instant::now();
            let mut content = client.read_object(bucket, &format!("{number}/{at}"), None, None).await?;
            while content.next().await?.is_some() {}
            each.push(asked.elapsed());
        }
        anyhow::Ok(each)
    });
    let each = bar.during(try_join_all(gets.map(FutureExt::boxed_local))).await?.concat();
    Ok(vec![puts, Row::of("get", size_bytes, began.elapsed(), each)])
}
