//! Readers of traces.

mod blkparse;
mod blktrace;
mod events;
mod iolog;
mod msr;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod window;

use std::fmt;
use std::path::{Path, PathBuf};

use blkparse::Blkparse;
use blktrace::Blktrace;
use events::{Event, Matcher};
use iolog::Iolog;
use msr::Msr;
use source::Source;
use window::Ordered;

pub(crate) use events::SECTOR_BYTES;
pub(crate) use msr::TICK_NS;

use crate::error::{Complaint, TraceError, excerpt};
use crate::request::Request;

/// The form that a trace comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The CSV of the MSR Cambridge traces.
    Msr,
    /// What blkparse prints by default.
    Blkparse,
    /// What blktrace writes, version 7; one file, or one for each processor.
    Blktrace,
    /// A log of fio, version 2 or 3.
    Iolog,
}

impl Format {
    const ALL: [Format; 4] = [Format::Msr, Format::Blkparse, Format::Blktrace, Format::Iolog];
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Msr => "MSR Cambridge CSV",
            Format::Blkparse => "blkparse text",
            Format::Blktrace => "blktrace binary",
            Format::Iolog => "fio iolog",
        })
    }
}

/// The requests of a trace, in order of time, the first at 0, in bounded memory. Kernel events that are out of order by
/// at most 10 ms (and 1024 events) are put in order; a request that is before the one above it is refused otherwise,
/// with its place.
///
/// After an error, nothing more comes.
pub struct Reader {
    input: Input,
    format: Format,
    /// When the first request arrived, in the time of the trace.
    begin_ns: u64,
    /// The first request, read to see that there is one.
    first: Option<Request>,
    failed: bool,
}

enum Input {
    Requests(Ordered<Request>),
    Events(Ordered<Event>, Matcher),
}

/// Opens a trace, in any [`Format`], plain or compressed by gzip or zstd: the content says which, not the name. A
/// blktrace recording of several files is named by any of them or by what their names share.
///
/// Refused: what cannot be read, an unknown format, and a trace without a request.
pub fn open(path: &Path) -> Result<Reader, TraceError> {
    let files = files(path);
    if let Some(complaint) = twice(path, &files) {
        return Err(complaint.of_file(path));
    }
    let mut sources = files.iter().map(|file| Source::open(file)).collect::<Result<Vec<_>, _>>()?;
    // A processor that had nothing to do leaves an empty file.
    let mut told = 0;
    while told + 1 < sources.len() && sources[told].head()?.is_empty() {
        told += 1;
    }
    let format = sniff(sources[told].head()?).map_err(|complaint| complaint.of_file(path))?;
    Reader::new(sources, path, format)
}

/// The files that [`open`] reads for a path: all of a blktrace recording, else the path itself.
pub fn files(path: &Path) -> Vec<PathBuf> {
    let found: Vec<_> = blktrace::files_of(path).into_iter().map(|(_, file)| file).collect();
    let is_another = path.exists() && !found.iter().any(|file| file == path);
    if found.is_empty() || is_another { vec![path.to_owned()] } else { found }
}

/// What is wrong with a recording that has two files of a processor, as one plain and one compressed.
fn twice(path: &Path, files: &[PathBuf]) -> Option<Complaint> {
    let found = blktrace::files_of(path);
    let pair = found.windows(2).find(|pair| pair[0].0 == pair[1].0 && files.contains(&pair[0].1))?;
    let [one, other] = [&pair[0].1, &pair[1].1].map(|file| file.display());
    Some(Complaint::new(format!("{one} and {other} are of one processor"), "leave one of them in the folder"))
}

/// The only file of a trace in a form that has one.
fn only(mut sources: Vec<Source>, path: &Path, format: Format) -> Result<Source, TraceError> {
    match (sources.pop(), sources.is_empty()) {
        (Some(source), true) => Ok(source),
        _ => {
            let what = format!("{format} in several files that are named like those of a blktrace recording");
            Err(Complaint::new(what, "give the one to be read another name").of_file(path))
        }
    }
}

fn sniff(head: &[u8]) -> Result<Format, Complaint> {
    if head.is_empty() {
        return Err(Complaint::new("the trace is empty", "record or copy it again"));
    }
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Err(Complaint::new("this is text in UTF-16", "make it UTF-8 (iconv -f UTF-16 -t UTF-8)"));
    }
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
    let is = |format: &Format| match format {
        Format::Msr => msr::sniff(line),
        Format::Blkparse => blkparse::sniff(line),
        Format::Blktrace => blktrace::sniff(head),
        Format::Iolog => iolog::sniff(line),
    };
    Format::ALL.into_iter().find(is).ok_or_else(|| {
        let [msr, blkparse, blktrace, iolog] = Format::ALL;
        let what = format!("the form is not known (it begins with '{}')", excerpt(&line[..line.len().min(20)]));
        let remedy = format!("{msr}, {blkparse}, {blktrace} and {iolog} are read, plain or by gzip or zstd");
        Complaint::new(what, remedy)
    })
}

impl Reader {
    fn new(sources: Vec<Source>, path: &Path, format: Format) -> Result<Reader, TraceError> {
        let only = |sources| only(sources, path, format);
        let input = match format {
            Format::Msr => Input::Requests(Ordered::new(Box::new(Msr::new(only(sources)?)))),
            Format::Iolog => Input::Requests(Ordered::new(Box::new(Iolog::new(only(sources)?)?))),
            Format::Blkparse => {
                Input::Events(Ordered::new(Box::new(Blkparse::new(only(sources)?))), Matcher::default())
            }
            Format::Blktrace => Input::Events(Ordered::new(Box::new(Blktrace::new(sources)?)), Matcher::default()),
        };
        let mut reader = Reader { input, format, begin_ns: 0, first: None, failed: false };
        reader.first = reader.input.next()?;
        let Some(first) = &reader.first else {
            let remedy = match format {
                Format::Msr | Format::Iolog => "record or copy it again",
                Format::Blkparse | Format::Blktrace => {
                    "record what is queued and completed, as blktrace does by default"
                }
            };
            return Err(Complaint::new(format!("no request in this {format}"), remedy).of_file(path));
        };
        reader.begin_ns = first.at_ns;
        Ok(reader)
    }

    /// The form of the trace.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes read so far, and bytes in all, of the trace's files as they are stored.
    pub fn progress(&self) -> (u64, u64) {
        match &self.input {
            Input::Requests(from) => from.progress(),
            Input::Events(from, _) => from.progress(),
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.input.next(),
        };
        self.failed = next.is_err();
        let since_begin = |request: Request| Request { at_ns: request.at_ns - self.begin_ns, ..request };
        next.transpose().map(|next| next.map(since_begin))
    }
}

impl Input {
    fn next(&mut self) -> Result<Option<Request>, TraceError> {
        match self {
            Input::Requests(from) => from.next(),
            Input::Events(from, matcher) => loop {
                if let Some(request) = matcher.pop(false) {
                    return Ok(Some(request));
                }
                match from.next()? {
                    Some(event) => matcher.take(&event),
                    None => return Ok(matcher.pop(true)),
                }
            },
        }
    }
}
