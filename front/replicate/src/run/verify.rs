//! Whether a copy is what its source is, contents and all.

#[cfg(doc)]
use super::Place;
use super::{Options, Source};
use crate::error::{Failure, Result};
use crate::target::Target;
use crate::tree::{Catalogue, Directory, Entry, Kind, Scan, join, scan};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

/// What a comparison came to.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// Files whose contents were compared.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What differs, and how.
    pub differing: Vec<Failure>,
}

/// Compares everything, contents by sums that each side makes of its own. [`Place::distrust`] has the next run carry what differs.
pub fn verify(source: &Path, target: &Target, options: &Options) -> Result<Verified> {
    options.check(target)?;
    let began = Instant::now();
    let source = Source::open(source)?;
    let mut verified = options.carrier(target).verify(&source, options.workers)?;
    verified.differing.sort();
    verified.seconds = began.elapsed().as_secs_f64();
    Ok(verified)
}

/// What is to be compared by sums of both sides.
pub(crate) struct Summed {
    pub path: Vec<u8>,
    pub of: Of,
}

/// Of what a sum is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// Of a file.
    Contents { bytes: u64 },
    /// Extended ones, of whatever has any at both sides.
    Attributes,
}

impl Of {
    /// What is told where the sums differ.
    pub fn differ(self) -> &'static str {
        match self {
            Self::Contents { .. } => "contents differ",
            Self::Attributes => "extended attributes or access control lists differ",
        }
    }

    /// Of contents.
    pub fn bytes(self) -> Option<u64> {
        if let Self::Contents { bytes } = self { Some(bytes) } else { None }
    }
}

/// What differs between the source's tree and the one that the target tells, contents and values of attributes apart, and what is to be
/// compared for those. Owners are no difference where all belongs to whoever writes the copy.
pub(crate) fn compare(source: &Source, there: &Catalogue, has_one_owner: bool) -> (Vec<Failure>, Vec<Summed>) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let (here, unread) = scan(source.root.as_fd(), Scan { threads, attributes: true, opens: false }, Some);
    let not_carried = here.iter().flat_map(Directory::not_carried);
    let mut differing: Vec<Failure> = unread
        .into_iter()
        .chain(not_carried)
        .map(|unread| Failure::new(unread.path, format!("source: {}", unread.cause)))
        .collect();
    let mut there: BTreeMap<Vec<u8>, Directory> = (0..there.directories())
        .filter_map(|index| Directory::of_record(there.record(index)).ok())
        .map(|directory| (directory.path.clone(), directory))
        .collect();
    let (mut sums, mut inodes) = (Vec::new(), Inodes::default());
    for directory in here {
        let Some(copy) = there.remove(&directory.path) else {
            differing.push(Failure::new(directory.path, MISSING));
            continue;
        };
        if !directory.meta.is_same(&copy.meta, has_one_owner) || directory.has_attributes != copy.has_attributes {
            differing.push(Failure::new(directory.path.clone(), LOOK));
        }
        if directory.has_attributes && copy.has_attributes {
            sums.push(Summed { path: directory.path.clone(), of: Of::Attributes });
        }
        let mut copies: BTreeMap<&[u8], &Entry> = copy.entries.iter().map(|entry| (&*entry.name, entry)).collect();
        for entry in &directory.entries {
            let path = directory.path_of(entry);
            let Some(copy) = copies.remove(&*entry.name) else {
                differing.push(Failure::new(path, MISSING));
                continue;
            };
            let is_whole = entry.kind == Kind::File && copy.kind == Kind::File && entry.size_bytes == copy.size_bytes;
            let contents = is_whole.then_some(Of::Contents { bytes: entry.size_bytes });
            let attributes = (entry.has_attributes && copy.has_attributes).then_some(Of::Attributes);
            sums.extend(attributes.into_iter().chain(contents).map(|of| Summed { path: path.clone(), of }));
            let how = differs(entry, copy, has_one_owner)
                .or_else(|| (!inodes.agree(entry, copy)).then_some("hard links differ"));
            differing.extend(how.map(|how| Failure::new(path, how)));
        }
        let strangers = copies.into_keys().map(|name| Failure::new(join(&directory.path, name), ONLY_THERE));
        differing.extend(strangers);
    }
    differing.extend(there.into_keys().map(|path| Failure::new(path, ONLY_THERE)));
    (differing, sums)
}

const ONLY_THERE: &str = "only the target has it";
pub(super) const MISSING: &str = "the target does not have it";
const LOOK: &str = "owner, permissions, times or attributes differ";

/// Which inode of the copy is which one of the source: all names of one are names of one there.
#[derive(Default)]
struct Inodes {
    there: HashMap<(u64, u64), (u64, u64)>,
    here: HashMap<(u64, u64), (u64, u64)>,
}

impl Inodes {
    fn agree(&mut self, here: &Entry, there: &Entry) -> bool {
        let has_other_names = here.links > 1 || there.links > 1;
        !has_other_names
            || (*self.there.entry(here.inode).or_insert(there.inode) == there.inode
                && *self.here.entry(there.inode).or_insert(here.inode) == here.inode)
    }
}

fn differs(here: &Entry, there: &Entry, has_one_owner: bool) -> Option<&'static str> {
    if here.kind != there.kind || here.target != there.target {
        Some("it is something else")
    } else if here.size_bytes != there.size_bytes {
        Some("sizes differ")
    } else if !here.meta.is_same(&there.meta, has_one_owner) || here.has_attributes != there.has_attributes {
        Some(LOOK)
    } else {
        None
    }
}
