//! Volumes as plain vectors of blocks, and what a power cut may make of them.

use kura_block::{Error, Kind};
use kura_controller::WhenFull;
use std::collections::BTreeMap;
use std::rc::Rc;

pub const BLOCK: usize = 4096;

/// A block's bytes; `None` is all zeroes.
pub type Bytes = Option<Rc<Vec<u8>>>;

/// What a block may hold: the last durable version first, then every later one in order. The last one is the present.
#[derive(Clone, Default)]
pub struct Versions {
    /// Number of the first one in `kept`.
    first: u64,
    kept: Vec<Bytes>,
    /// Number of the last one whose write was acknowledged.
    acknowledged: u64,
}

impl Versions {
    pub fn now(&self) -> Bytes {
        self.kept.last().cloned().flatten()
    }

    /// What a snapshot has of the block: the present, and nothing else.
    pub fn frozen(&self) -> Self {
        Self { first: 0, kept: vec![self.now()], acknowledged: 0 }
    }

    fn push(&mut self, bytes: Bytes) {
        if self.kept.is_empty() {
            self.kept.push(None);
        }
        self.kept.push(bytes);
    }

    fn acknowledge(&mut self) {
        self.acknowledged = self.first + (self.kept.len() as u64).saturating_sub(1);
    }

    /// Versions before this one cannot come back.
    fn durable(&mut self, version: u64) {
        let gone = version.saturating_sub(self.first).min((self.kept.len() as u64).saturating_sub(1));
        self.kept.drain(..gone as usize);
        self.first += gone;
    }
}

#[derive(Clone, Default)]
pub struct Volume {
    pub blocks: Vec<Versions>,
    /// True when the volume's existence is durable.
    pub durable: bool,
    /// True while a deletion is asked for and not answered.
    pub deleting: bool,
    /// True once it had snapshots, or when it is one: it does not shrink.
    pub versions: bool,
    /// True for a snapshot that takes no writes.
    pub read_only: bool,
    /// Another size in blocks that it may have while a resize is not answered.
    pub resizing: Option<usize>,
}

/// All volumes, by name.
#[derive(Default)]
pub struct Reference {
    pub volumes: BTreeMap<String, Volume>,
    /// Volumes without redundancy are made, too: no disk is lost.
    pub unmirrored: bool,
    /// What a full pool does, where it is so small that it gets full.
    pub when_full: Option<WhenFull>,
    /// Requests that a full pool has refused.
    pub refused: u32,
    /// Snapshots that a full pool has dropped.
    pub dropped: u32,
}

impl Reference {
    /// True for what a full pool may drop.
    pub fn may_drop(&self, name: &str) -> bool {
        self.when_full == Some(WhenFull::DropOldest) && name.contains('@')
    }

    /// True when an error may be that the pool is full; it is counted then.
    pub fn refuses(&mut self, error: &Error) -> bool {
        let full = self.when_full.is_some() && error.kind() == Kind::Full;
        self.refused += u32::from(full);
        full
    }

    pub fn bytes(&self, name: &str, offset: usize, len: usize) -> Vec<u8> {
        let volume = &self.volumes[name];
        let mut out = vec![0; len];
        let mut at = 0;
        while at < len {
            let (block, inside) = ((offset + at) / BLOCK, (offset + at) % BLOCK);
            let count = (BLOCK - inside).min(len - at);
            if let Some(bytes) = volume.blocks[block].now() {
                out[at..at + count].copy_from_slice(&bytes[inside..inside + count]);
            }
            at += count;
        }
        out
    }

    /// Notes that bytes are being written: from now on the write may survive a power cut.
    pub fn write(&mut self, name: &str, offset: usize, data: &[u8]) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let mut at = 0;
        while at < data.len() {
            let place = offset + at;
            let (block, inside) = (place / BLOCK, place % BLOCK);
            let len = (BLOCK - inside).min(data.len() - at);
            let mut bytes = volume.blocks[block].now().map_or_else(|| vec![0; BLOCK], |bytes| (*bytes).clone());
            bytes[inside..inside + len].copy_from_slice(&data[at..at + len]);
            let zero = bytes.iter().all(|byte| *byte == 0);
            volume.blocks[block].push((!zero).then(|| Rc::new(bytes)));
            at += len;
        }
    }

    /// The last write of these blocks was refused.
    pub fn undo(&mut self, name: &str, first: usize, end: usize) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        for block in &mut volume.blocks[first..end] {
            block.kept.pop();
        }
    }

    /// The write of these blocks was acknowledged; with `durable` it cannot be lost any more.
    pub fn acknowledge(&mut self, name: &str, first: usize, end: usize, durable: bool) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        for block in &mut volume.blocks[first..end] {
            block.acknowledge();
            if durable {
                block.durable(block.acknowledged);
            }
        }
    }

    /// The last acknowledged version of each block: what a flush that begins now makes durable.
    pub fn acknowledged(&self, name: &str) -> Vec<u64> {
        self.volumes
            .get(name)
            .map_or_else(Vec::new, |volume| volume.blocks.iter().map(|block| block.acknowledged).collect())
    }

    /// A flush that began when these were the acknowledged versions is done.
    pub fn flushed(&mut self, name: &str, acknowledged: &[u64]) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        for (block, version) in volume.blocks.iter_mut().zip(acknowledged) {
            block.durable(*version);
        }
    }

    /// Takes over what a volume was found to hold after a power cut; a line about the first block that cannot be.
    pub fn adopt(&mut self, name: &str, found: &[u8]) -> Result<(), String> {
        let volume = self.volumes.get_mut(name).ok_or_else(|| format!("volume {name} came from nowhere"))?;
        if volume.resizing.take().is_some_and(|blocks| blocks * BLOCK == found.len()) {
            volume.blocks.resize(found.len() / BLOCK, Versions::default());
        }
        if volume.blocks.len() * BLOCK != found.len() {
            return Err(format!("volume {name} has {} bytes and had {} blocks", found.len(), volume.blocks.len()));
        }
        for (at, (versions, bytes)) in volume.blocks.iter_mut().zip(found.chunks(BLOCK)).enumerate() {
            let zero = bytes.iter().all(|byte| *byte == 0);
            let is = |version: &Bytes| version.as_ref().map_or(zero, |version| **version == bytes);
            let known = if versions.kept.is_empty() { zero } else { versions.kept.iter().any(is) };
            if !known {
                return Err(format!("volume {name} block {at} is none of its {} versions", versions.kept.len()));
            }
            let kept = vec![(!zero).then(|| Rc::new(bytes.to_vec()))];
            *versions = Versions { first: 0, kept, acknowledged: 0 };
        }
        Ok(())
    }
}
