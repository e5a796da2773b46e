//! Blocks that no disk takes: the disks of their extent are out of service.
//!
//! What must hold: nobody waits for them. What stayed in the write buffer for ever would keep the journal's tail where it is, and
//! so in the end every writer of the controller. So a write to such a block is refused; and one that was acknowledged while its
//! disk still worked is given up, and told: it is as lost as what lies beside it.

use crate::store::Inner;
use crate::tables::VolumeState;
use kura_block::{Error, Result};

impl Inner {
    /// Refuses blocks that no disk would take, from `first` to before `end`; their extents are there.
    pub fn refuse_lost(&self, volume: &VolumeState, first: u64, end: u64) -> Result<()> {
        if self.tables.borrow().failed.is_empty() {
            return Ok(());
        }
        let Some(block) = (first..end).find(|block| self.is_homeless(volume, *block)) else { return Ok(()) };
        let name = volume.spec.borrow().name.clone();
        Err(Error::device(format!("volume {name} block {block}: too many of its disks are out of service to write it")))
    }

    /// True when so much of a block's group is lost that nothing can be written there for good: of a group with parity, not even
    /// its pages may be left.
    fn is_homeless(&self, volume: &VolumeState, block: u64) -> bool {
        let extent = volume.extent((block / self.array.extent_blocks() as u64) as u32);
        extent.is_some_and(|extent| !self.array.holds(&extent.group.site()) && self.takes_writes(&extent).is_none())
    }

    /// Gives up blocks in the write buffer that no disk takes any more.
    pub fn give_up_lost(&self, volume: &VolumeState, blocks: impl Iterator<Item = u64>) {
        let mut count = 0;
        for block in blocks {
            self.drop_dirty(volume, block, block + 1);
            count += 1;
        }
        let name = volume.spec.borrow().name.clone();
        tracing::error!(
            volume = name,
            blocks = count,
            "written blocks are lost: too many of their disks are out of service"
        );
    }
}
