//! Where requests come from: a trace that was given, or a generated load.

use crate::experiment::Progress;
use anyhow::{Context, Result, ensure};
use kura_load::Spec;
use kura_trace::{Op, Request, TraceError, files};
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// Requests that can be read again and again. As JSON it tells which they are, wherever the trace lies.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A trace.
    Trace {
        /// Where it is.
        #[serde(skip)]
        path: PathBuf,
        /// Its file's name.
        name: String,
        /// A hash of the bytes of all its files.
        xxh3: String,
    },
    /// A generated load, with every parameter spelt out.
    Load(String),
}

/// Requests of a [`Source`].
pub type Requests<'a> = Box<dyn Iterator<Item = Result<Request, TraceError>> + 'a>;

/// How far a load reaches, how fast it comes, and how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// The first byte behind all requests.
    pub end_bytes: u64,
    /// The first request that ends there, counted from 1; none of a load, whose parameters say how far it reaches.
    pub furthest_request: Option<u64>,
    /// Mean arrivals a second of reads and writes.
    pub arrivals_per_s: f64,
    /// When the last request comes, of all of a trace, and of the beginning of a load.
    pub last_ns: u64,
    /// The longest time from a request to the next, and the number of that next one, counted from 1.
    pub longest_gap: (u64, u64),
}

/// What tells a trace, or a generated load, from all others wherever it lies: its name and a hash of the bytes of all its
/// files, or every parameter.
pub fn identity(path: &Path, seed: u64) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(Source::of(path, seed, &|_| {})?)?)
}

/// Requests that tell how fast a generated load comes.
const PACE_REQUESTS: usize = 20_000;

/// Requests between two words of how far a trace is read.
const WORD: u64 = 4096;

impl Source {
    /// A trace's path, or `load:` and a generated load. `tell` hears how much of a trace is read, 0 to 1.
    pub fn of(path: &Path, seed: u64, tell: &dyn Fn(f64)) -> Result<Self> {
        if let Some(text) = path.to_str().filter(|text| text.starts_with(kura_load::PREFIX)) {
            return Self::load(text, seed);
        }
        // What cannot be read is told now, not after what takes long.
        kura_trace::open(path)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let xxh3 = hash(&files(path), tell).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self::Trace { path: path.to_owned(), name, xxh3 })
    }

    /// The same of several paths.
    pub fn all(paths: &[PathBuf], seed: u64, progress: &Progress<'_>) -> Result<Vec<Self>> {
        let all = paths.len() as f64;
        let one = |(path, n): (&PathBuf, u32)| {
            let (begin, end) = (f64::from(n) / all, f64::from(n + 1) / all);
            progress.part(begin, end, |progress| Self::of(path, seed, &|part| progress.at(part)))
        };
        paths.iter().zip(0..).map(one).collect()
    }

    /// A generated load, of this seed unless it names its own.
    pub fn load(text: &str, seed: u64) -> Result<Self> {
        Ok(Self::Load(Spec::with_seed(text, seed)?.to_string()))
    }

    /// Its requests, from the first. `tell` hears how much of a trace is read, 0 to 1; of a load, nothing.
    pub fn requests<'a>(&self, tell: impl Fn(f64) + 'a) -> Result<Requests<'a>> {
        Ok(match self {
            Self::Trace { path, .. } => {
                let (mut reader, mut taken) = (kura_trace::open(path)?, 0);
                Box::new(std::iter::from_fn(move || {
                    taken += 1;
                    if taken % WORD == 0 {
                        let (read_bytes, all_bytes) = reader.progress();
                        tell(read_bytes as f64 / all_bytes.max(1) as f64);
                    }
                    reader.next()
                }))
            }
            Self::Load(text) => Box::new(text.parse::<Spec>()?.requests().map(Ok)),
        })
    }

    /// How far it reaches and how fast it comes: of a trace, all of it is read, of which `tell` hears.
    pub fn extent(&self, tell: &dyn Fn(f64)) -> Result<Extent> {
        let (room_bytes, most) = match self {
            Self::Trace { .. } => (0, usize::MAX),
            Self::Load(text) => (text.parse::<Spec>()?.size_bytes(), PACE_REQUESTS),
        };
        let (mut end_bytes, mut furthest_request, mut first_ns, mut last_ns) = (room_bytes, None, None, 0);
        let (mut requests, mut moving, mut longest_gap) = (0_u64, 0_u64, (0, 0));
        for request in self.requests(tell)?.take(most) {
            let request = request?;
            requests += 1;
            moving += u64::from(moves_data(&request));
            if request.end_bytes() > end_bytes {
                (end_bytes, furthest_request) = (request.end_bytes(), Some(requests));
            }
            let gap_ns = first_ns.map_or(0, |_: u64| request.at_ns.saturating_sub(last_ns));
            longest_gap = longest_gap.max((gap_ns, requests));
            first_ns.get_or_insert(request.at_ns);
            last_ns = request.at_ns;
        }
        let span_s = (last_ns - first_ns.unwrap_or(0)) as f64 / 1e9;
        ensure!(span_s > 0.0, "{}: no time passes in it: it has no rate of arrivals", self.title());
        ensure!(moving > 1, "{}: it has fewer than two reads and writes: it has no rate of arrivals", self.title());
        let arrivals_per_s = (moving - 1) as f64 / span_s;
        Ok(Extent { end_bytes, furthest_request, arrivals_per_s, last_ns, longest_gap })
    }

    /// Refuses what reaches further than `most_bytes`; `why` says what is no larger.
    pub fn reaches_at_most(&self, extent: &Extent, most_bytes: u64, why: &str) -> Result<()> {
        let Extent { end_bytes, furthest_request, .. } = *extent;
        let what = furthest_request.map_or("it".to_owned(), |request| format!("request {request}"));
        ensure!(
            end_bytes <= most_bytes,
            "{}: {what} reaches to byte {end_bytes}, and {why} {most_bytes} bytes at most: give a trace of a smaller volume",
            self.title()
        );
        Ok(())
    }

    /// Its requests that move data, `factor` times as many a second, over and over: behind the last comes the first.
    pub fn endless(&self, factor: f64) -> Result<Endless> {
        let again = match self {
            Self::Trace { path, .. } => Again::Trace(path.clone()),
            Self::Load(text) => Again::Load(Box::new(text.parse()?)),
        };
        Ok(Endless { requests: again.requests()?, again, factor, begun_ns: 0, last_ns: 0 })
    }

    /// What it is called in titles.
    pub fn title(&self) -> String {
        match self {
            Self::Trace { name, .. } => name.clone(),
            Self::Load(text) => {
                let name = text.trim_start_matches(kura_load::PREFIX).split(',').next().unwrap_or_default();
                format!("{name}, a generated load")
            }
        }
    }
}

type Owned = Box<dyn Iterator<Item = Result<Request, TraceError>> + Send>;

/// What is begun again when it ends.
enum Again {
    Trace(PathBuf),
    Load(Box<Spec>),
}

impl Again {
    fn requests(&self) -> Result<Owned, TraceError> {
        Ok(match self {
            Self::Trace(path) => Box::new(kura_trace::open(path)?),
            Self::Load(spec) => Box::new(spec.requests().map(Ok)),
        })
    }
}

/// True for what arrays and tiers are given of a trace: reads and writes.
fn moves_data(request: &Request) -> bool {
    matches!(request.op, Op::Read | Op::Write)
}

/// See [`Source::endless`].
pub struct Endless {
    again: Again,
    requests: Owned,
    factor: f64,
    /// When this turn began, and when its last request was, in the source's time.
    begun_ns: u64,
    last_ns: u64,
}

impl Iterator for Endless {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut turned = false;
        loop {
            match self.requests.next() {
                Some(Ok(request)) if !moves_data(&request) => {}
                Some(Ok(request)) => {
                    self.last_ns = self.begun_ns + request.at_ns;
                    let at_ns = (self.last_ns as f64 / self.factor) as u64;
                    return Some(Ok(Request { at_ns, ..request }));
                }
                Some(Err(error)) => return Some(Err(error)),
                None if turned => return None,
                None => {
                    turned = true;
                    self.begun_ns = self.last_ns;
                    match self.again.requests() {
                        Ok(requests) => self.requests = requests,
                        Err(error) => return Some(Err(error)),
                    }
                }
            }
        }
    }
}

/// A hash of the files' bytes, and of where each ends.
fn hash(files: &[PathBuf], tell: &dyn Fn(f64)) -> std::io::Result<String> {
    let (mut hasher, mut buffer) = (Xxh3Default::new(), vec![0; 1 << 20]);
    let len = |path: &PathBuf| std::fs::metadata(path).map_or(0, |it| it.len());
    let (all_bytes, mut hashed_bytes) = (files.iter().map(len).sum::<u64>(), 0_u64);
    for path in files {
        let (mut file, mut len_bytes) = (std::fs::File::open(path)?, 0_u64);
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => {
                    hasher.update(&buffer[..read]);
                    len_bytes += read as u64;
                    hashed_bytes += read as u64;
                    tell(hashed_bytes as f64 / all_bytes.max(1) as f64);
                }
            }
        }
        hasher.update(&len_bytes.to_le_bytes());
    }
    Ok(format!("{:016x}", hasher.digest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_known_by_all_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &str| std::fs::write(folder.path().join(name), bytes).unwrap();
        file("disk.blktrace.0", "first");
        file("disk.blktrace.10", "second");
        file("disk.csv", "another");
        file("disk.blktrace.txt", "notes");
        let of = |name: &str| hash(&files(&folder.path().join(name)), &|_| {}).unwrap();
        let names = ["disk", "disk.blktrace", "disk.blktrace.0", "disk.blktrace.10"];
        let before = names.map(of);
        assert!(before.iter().all(|hash| *hash == before[0]), "{before:?}");
        assert_ne!(of("disk.csv"), before[0]);

        file("disk.csv", "changed");
        file("disk.blktrace.txt", "changed");
        assert_eq!(names.map(of), before);
        // The same bytes, elsewhere.
        file("disk.blktrace.0", "firsts");
        file("disk.blktrace.10", "econd");
        assert!(names.map(of).iter().all(|hash| *hash != before[0]));
    }

    #[test]
    fn a_load_has_the_seed_unless_it_names_one() {
        let seed = |text: &str| match Source::of(Path::new(text), 7, &|_| {}).unwrap() {
            Source::Load(text) => text.split(',').find_map(|it| it.strip_prefix("seed=")).map(str::to_owned),
            Source::Trace { .. } => None,
        };
        assert_eq!(seed("load:uniform").as_deref(), Some("7"));
        assert_eq!(seed("load:zipf,theta=1.2,requests=10").as_deref(), Some("7"));
        assert_eq!(seed("load:zipf, seed=3,theta=1.2").as_deref(), Some("3"));
    }

    #[test]
    fn how_much_of_a_trace_is_read_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web_3.csv");
        let line = |n: u64| format!("{},web,3,Read,{},4096,100\n", 128_166_372_003_061_629 + n, n * 4096);
        std::fs::write(&path, (0..50_000).map(line).collect::<String>()).unwrap();
        let told = std::cell::RefCell::new(Vec::new());
        let source = Source::of(&path, 0, &|_| {}).unwrap();
        assert_eq!(source.requests(|part| told.borrow_mut().push(part)).unwrap().count(), 50_000);
        let told = told.into_inner();
        assert!(told.len() > 5 && told.is_sorted(), "{told:?}");
        assert!(told[0] < 0.5 && told[told.len() - 1] > 0.9, "{told:?}");
    }
}
