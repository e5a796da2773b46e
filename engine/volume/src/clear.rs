//! Clearing: blocks that read as zeroes again, and extents that go back to the pool.

use crate::extent::Extent;
use crate::record::Record;
use crate::store::Inner;
use crate::tables::VolumeState;
use kura_block::{BLOCK_BYTES_U64, Bufs, Error, Result};
use std::rc::Rc;

/// What happens to the space of cleared blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// It goes back to the pool where whole extents are empty.
    GiveBack,
    /// It stays allocated, and holes become allocated; not of a volume with snapshots, of which any write may take space.
    Keep,
}

impl Inner {
    /// Makes bytes at any offset read as zeroes; buffered when the future resolves.
    pub async fn clear_bytes(&self, volume: &Rc<VolumeState>, offset: u64, len: u64, space: Space) -> Result<()> {
        let unit = BLOCK_BYTES_U64;
        let end = offset + len;
        let (first, last) = (offset.div_ceil(unit), end / unit);
        if first >= last {
            return self.write_bytes(volume, offset, &Bufs::zeroes(len as usize)).await;
        }
        if offset < first * unit {
            self.write_bytes(volume, offset, &Bufs::zeroes((first * unit - offset) as usize)).await?;
        }
        self.clear_blocks(volume, first, last, space).await?;
        if last * unit < end {
            self.write_bytes(volume, last * unit, &Bufs::zeroes((end - last * unit) as usize)).await?;
        }
        Ok(())
    }

    /// Makes whole blocks read as zeroes; buffered when the future resolves.
    pub async fn clear_blocks(&self, volume: &Rc<VolumeState>, first: u64, end: u64, space: Space) -> Result<()> {
        let group_blocks = self.group_blocks(volume);
        let space = if volume.spec.borrow().thick { Space::Keep } else { space };
        let mut at = first;
        while at < end {
            self.released(volume).await;
            if let Some(branch) = volume.branch() {
                at = self.clear_seen(volume, &branch, at, end).await?;
                continue;
            }
            let (index, group) = (self.index_of(at), at / group_blocks);
            let volume_end = volume.size_bytes() / BLOCK_BYTES_U64;
            let whole = at == group * group_blocks && end >= volume_end.min((group + 1) * group_blocks);
            if space == Space::GiveBack && (whole || volume.extent(index).is_none()) {
                self.ready(volume)?;
                if self.journal_has_room(0) {
                    self.unmap(volume, index);
                    at = (group + 1) * group_blocks;
                } else {
                    self.make_room(0).await?;
                }
                continue;
            }
            let piece_end = end.min((u64::from(index) + 1) * self.array.extent_blocks() as u64);
            self.make_writable(volume, at, piece_end, 0).await?;
            if volume.branch.borrow().is_some() || volume.held.get() {
                continue;
            }
            self.clear_loaded(volume, at, piece_end);
            self.client_wrote();
            let empty = space == Space::GiveBack && self.group_is_empty(volume, index).await?;
            if empty && volume.branch.borrow().is_none() && !volume.held.get() {
                self.unmap(volume, index);
            }
            at = piece_end;
        }
        Ok(())
    }

    /// Makes blocks read as zeroes whose extents' pages are loaded.
    pub fn clear_loaded(&self, volume: &Rc<VolumeState>, first: u64, end: u64) {
        let mut at = first;
        while at < end {
            let (index, start) = self.split(at);
            let piece = (self.array.extent_blocks() - start).min((end - at) as usize);
            let (piece_end, inside) = (at + piece as u64, start..start + piece);
            let extent = volume.extent(index).filter(|extent| extent.is_loaded());
            let written =
                |extent: &Rc<Extent>| extent.with_page(|page| inside.clone().any(|block| page.get(block).is_some()));
            if let Some(extent) = extent.filter(written) {
                self.give_up_successor(&extent);
                let lsn = self.append(&Record::Clear { volume: volume.id, first: at, blocks: piece_end - at });
                self.forget_hot(volume, at, piece_end, lsn);
                self.drop_dirty(volume, at, piece_end);
                self.clear_checksums(&extent, inside);
                extent.set_cleared(lsn);
            }
            at = piece_end;
        }
    }

    /// True when no block of an extent's group is written; nothing changes between the answer and the caller's next
    /// await. Stops looking at the first extent that has something.
    async fn group_is_empty(&self, volume: &Rc<VolumeState>, index: u32) -> Result<bool> {
        loop {
            let extents = volume.group_of(index);
            let written = |extent: &&Rc<Extent>| extent.is_loaded() && extent.with_page(|page| page.written() > 0);
            if extents.is_empty() || extents.iter().any(|extent| written(&extent)) {
                return Ok(false);
            }
            let Some(unknown) = extents.iter().find(|extent| !extent.is_loaded()) else { return Ok(true) };
            self.load(unknown).await?;
        }
    }

    /// Clears the checksums of blocks of an extent whose page is loaded.
    pub fn clear_checksums(&self, extent: &Rc<Extent>, inside: std::ops::Range<usize>) {
        for block in inside {
            let was_clean = extent.set(block, None);
            self.page_changed(extent, was_clean);
        }
    }

    fn refuse_branch(volume: &VolumeState) -> Result<()> {
        let name = || volume.spec.borrow().name.clone();
        let made = || Error::retry(format!("volume {}: a snapshot was made of it meanwhile", name()));
        if volume.branch.borrow().is_some() { Err(made()) } else { Ok(()) }
    }

    /// Makes a volume smaller, from its end on. An error leaves it as small as it has become, and all of that as it was.
    pub async fn shrink(&self, volume: &Rc<VolumeState>, size_bytes: u64) -> Result<()> {
        let (first, group_blocks) = (size_bytes / BLOCK_BYTES_U64, self.group_blocks(volume));
        let first_gone = first.div_ceil(group_blocks);
        let mut size = volume.size_bytes();
        loop {
            self.released(volume).await;
            self.ready(volume)?;
            Self::refuse_branch(volume)?;
            volume.check_still(size)?;
            // Of the group that stays in part.
            let cut = first..(size / BLOCK_BYTES_U64).min(first_gone * group_blocks);
            let group = if cut.is_empty() { Vec::new() } else { volume.group_of(self.index_of(first)) };
            if let Some(unloaded) = group.iter().find(|extent| !extent.is_loaded()) {
                self.load(unloaded).await?;
                continue;
            }
            let mut gone = volume.groups_from(first_gone as u32 * volume.shape.extents());
            while self.journal_has_room(0) {
                let Some(last) = gone.pop() else {
                    self.clear_loaded(volume, cut.start, cut.end);
                    self.set_size(volume, size_bytes);
                    return Ok(());
                };
                self.unmap(volume, last.owner.index);
                size = Self::bytes_of(self.group_range(volume, last.owner.index).0);
            }
            // Nothing was awaited since: nothing is there again when the size changes.
            if size < volume.size_bytes() {
                self.set_size(volume, size);
            }
            self.make_room(0).await?;
        }
    }
}
