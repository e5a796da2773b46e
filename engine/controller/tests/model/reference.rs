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
    /// So many of the last ones are being written: who reads may find the one before them.
    under_way: usize,
}

impl Versions {
    pub fn now(&self) -> Bytes {
        self.kept.last().cloned().flatten()
    }

    /// What a snapshot has of the block: the present, which is one of several while it is being written, and nothing else.
    pub fn frozen(&self) -> Self {
        let kept = match self.kept.len() {
            0 => vec![None],
            count => self.kept[count.saturating_sub(self.under_way + 1)..].to_vec(),
        };
        Self { kept, ..Self::default() }
    }

    /// True when the block may be found to hold this.
    fn may_be(&self, found: &[u8]) -> bool {
        let is =
            |version: &Bytes| version.as_ref().map_or(found.iter().all(|byte| *byte == 0), |known| **known == found);
        self.kept.iter().any(is) || self.kept.is_empty() && is(&None)
    }

    /// The same where a write of a part of it may have met what was before something else that was under way, or what that made of it.
    fn may_mix(&self, found: &[u8]) -> bool {
        let byte_of = |version: &Bytes, at: usize| version.as_ref().map_or(0, |bytes| bytes[at]);
        let is_known = |(at, byte): (usize, &u8)| self.kept.iter().any(|version| byte_of(version, at) == *byte);
        self.kept.is_empty() && self.may_be(found) || found.iter().enumerate().all(is_known)
    }

    fn push(&mut self, bytes: Bytes) {
        if self.kept.is_empty() {
            self.kept.push(None);
        }
        self.kept.push(bytes);
        self.under_way += 1;
    }

    fn acknowledge(&mut self) {
        self.acknowledged = self.first + (self.kept.len() as u64).saturating_sub(1);
        self.under_way = 0;
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
    /// What a snapshot is of while it is being made: it may have what is written there meanwhile.
    pub being_made_of: Option<String>,
    /// It is being rolled back, or was not to keep its size and did, while clients write there.
    pub in_doubt: bool,
}

impl Volume {
    /// Blocks that stay, whatever comes of a resize or a roll-back.
    pub fn stays(&self) -> usize {
        if self.in_doubt {
            return 0;
        }
        self.blocks.len().min(self.resizing.unwrap_or(usize::MAX))
    }
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
    /// Volumes are changed as wholes while others are, or are used.
    pub at_once: bool,
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

    /// True when an error may be that something else is under way, which is over sooner or later.
    pub fn is_busy(&self, error: &Error) -> bool {
        self.at_once && matches!(error.kind(), Kind::Busy | Kind::Retry)
    }

    /// True for a volume that is deleted, or is about to be.
    pub fn is_being_deleted(&self, name: &str) -> bool {
        self.volumes.get(name).is_none_or(|volume| volume.deleting)
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
        let mut at = 0;
        while at < data.len() {
            let place = offset + at;
            let (block, inside) = (place / BLOCK, place % BLOCK);
            let len = (BLOCK - inside).min(data.len() - at);
            let Some(volume) = self.volumes.get_mut(name) else { return };
            let mut bytes = volume.blocks[block].now().map_or_else(|| vec![0; BLOCK], |bytes| (*bytes).clone());
            bytes[inside..inside + len].copy_from_slice(&data[at..at + len]);
            let zero = bytes.iter().all(|byte| *byte == 0);
            let bytes = (!zero).then(|| Rc::new(bytes));
            volume.blocks[block].push(bytes.clone());
            for made in self.volumes.values_mut().filter(|made| made.being_made_of.as_deref() == Some(name)) {
                made.blocks.get_mut(block).into_iter().for_each(|versions| versions.push(bytes.clone()));
            }
            at += len;
        }
    }

    /// The last write of these blocks was refused.
    pub fn undo(&mut self, name: &str, first: usize, end: usize) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let end = end.min(volume.stays());
        for block in volume.blocks.iter_mut().take(end).skip(first) {
            block.kept.pop();
            block.under_way = 0;
        }
    }

    /// A volume is about to have so many blocks; so is a snapshot of it that is being made, perhaps.
    pub fn resizes(&mut self, name: &str, blocks: usize) {
        for (known, volume) in &mut self.volumes {
            if known == name || volume.being_made_of.as_deref() == Some(name) {
                volume.resizing = Some(blocks);
            }
        }
    }

    /// Blocks from the volume's start on that stay, whatever comes of a resize or a roll-back.
    pub fn stays(&self, name: &str) -> usize {
        self.volumes.get(name).map_or(0, Volume::stays)
    }

    /// A block is found to hold this, of all that it may: that is the present.
    pub fn keeps(&mut self, name: &str, block: usize, found: &[u8]) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let versions = &mut volume.blocks[block];
        assert!(versions.may_mix(found), "{name} block {block} is none of its {} versions", versions.kept.len());
        versions.push(found.iter().any(|byte| *byte != 0).then(|| Rc::new(found.to_vec())));
        versions.under_way = 0;
    }

    /// A block is found to hold this: it must be the present, or what was before a write that came to nothing.
    pub fn settle(&mut self, name: &str, block: usize, found: &[u8]) {
        if *self.bytes(name, block * BLOCK, BLOCK) != *found {
            self.undo(name, block, block + 1);
            assert!(*self.bytes(name, block * BLOCK, BLOCK) == *found, "{name} block {block} is neither");
        }
        let Some(volume) = self.volumes.get_mut(name) else { return };
        volume.blocks[block].under_way = 0;
    }

    /// The write of these blocks was acknowledged; with `durable` it cannot be lost any more.
    pub fn acknowledge(&mut self, name: &str, first: usize, end: usize, durable: bool) {
        let Some(volume) = self.volumes.get_mut(name) else { return };
        let end = end.min(volume.stays());
        for block in volume.blocks.iter_mut().take(end).skip(first) {
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
        let stays = volume.stays();
        for (block, version) in volume.blocks.iter_mut().take(stays).zip(acknowledged) {
            block.durable(*version);
        }
    }

    /// Takes over what a volume was found to hold after a power cut; a line about the first block that cannot be.
    pub fn adopt(&mut self, name: &str, found: &[u8]) -> Result<(), String> {
        let volume = self.volumes.get_mut(name).ok_or_else(|| format!("volume {name} came from nowhere"))?;
        volume.being_made_of = None;
        let (known, blocks) = (volume.blocks.len(), found.len() / BLOCK);
        // What shrinks may have done so in part.
        if volume.resizing.take().is_some_and(|to| (to.min(known)..=to.max(known)).contains(&blocks)) {
            volume.blocks.resize(blocks, Versions::default());
        }
        if volume.blocks.len() * BLOCK != found.len() {
            return Err(format!("volume {name} has {} bytes and had {} blocks", found.len(), volume.blocks.len()));
        }
        for (at, (versions, bytes)) in volume.blocks.iter_mut().zip(found.chunks(BLOCK)).enumerate() {
            let zero = bytes.iter().all(|byte| *byte == 0);
            if !(versions.may_be(bytes) || volume.in_doubt && versions.may_mix(bytes)) {
                return Err(format!("volume {name} block {at} is none of its {} versions", versions.kept.len()));
            }
            let kept = vec![(!zero).then(|| Rc::new(bytes.to_vec()))];
            *versions = Versions { kept, ..Versions::default() };
        }
        volume.in_doubt = false;
        Ok(())
    }
}
