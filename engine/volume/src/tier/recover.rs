//! Fast copies after a crash: from the tables, the log, and their pages.

use super::{FastCopy, FastTier, Key};
use crate::record::{Record, decode_places, encode_places};
use crate::store::Inner;
use futures::{StreamExt, stream};
use kura_array::{PageOwner, Places};
use kura_block::{Error, Reader, Result, Writer};
use kura_journal::Lsn;
use std::rc::Rc;

/// Pages read at once.
const WIDTH: usize = 32;

/// A fast copy as the tables name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub key: Key,
    /// LSN of the record that made it.
    pub born: u64,
    pub places: Places,
}

impl FastTier {
    /// Appends what the tables say of the copies.
    pub fn encode(&self, out: &mut Writer) {
        let copies = self.copies();
        out.u32(copies.len() as u32);
        for copy in copies {
            let (volume, index) = copy.key();
            encode_places(&copy.places, out.u64(volume).u32(index).u64(copy.owner.born));
        }
    }
}

impl Known {
    /// Reads what [`FastTier::encode`] wrote.
    pub fn decode_all(reader: &mut Reader<'_>) -> Result<Vec<Self>> {
        let count = reader.u32()?;
        let one = |_| {
            let key = (reader.u64()?, reader.u32()?);
            Ok(Self { key, born: reader.u64()?, places: decode_places(reader)? })
        };
        (0..count).map(one).collect()
    }
}

impl Inner {
    /// Reads the pages of the copies that the tables name.
    pub async fn load_copies(&self, copies: Vec<Known>) -> Result<()> {
        let mut found = stream::iter(copies)
            .map(|Known { key, born, places }| self.found_copy(key, (born, true), places))
            .buffer_unordered(WIDTH);
        while let Some(found) = found.next().await {
            found?;
        }
        Ok(())
    }

    /// Replays a record of the tier, unless the tables know it.
    pub async fn replay_tier(&self, record: Record, lsn: Lsn, known: bool) -> Result<()> {
        if known {
            return Ok(());
        }
        let volume = |volume| self.tables.borrow().volumes.get(&volume).cloned();
        match record {
            // Its page may have been written since, or not: what it says of blocks that the log does not write again is so.
            Record::Promote { volume, index, places } => {
                self.found_copy((volume, index), (lsn.0, false), places).await?;
            }
            Record::Demote { volume: id, index } => {
                if let Some(extent) = volume(id).and_then(|volume| volume.extent(index)) {
                    self.take_copy(&extent, Lsn(lsn.0 + 1));
                }
            }
            Record::TierRules { volume: id, rules } => {
                if let Some(volume) = volume(id) {
                    volume.tier.set(rules);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A copy that was born then; its page was `written` for certain, or may be.
    async fn found_copy(&self, (volume, index): Key, (born, written): (u64, bool), places: Places) -> Result<()> {
        let state = self.tables.borrow().volumes.get(&volume).cloned();
        let extent = state.and_then(|state| state.extent(index)).ok_or_else(|| {
            Error::corrupt(format!("there is a fast copy of extent {index} of volume {volume}, which is not there"))
        })?;
        let owner = PageOwner { volume, index, born };
        let blocks = self.array.extent_blocks();
        let copy = match self.find_fast_page(&places, owner, written).await? {
            Some(page) => FastCopy::of_page(page, places, blocks),
            // Without a page nobody knows what lies here. What home has of it is held against checksums.
            None => FastCopy::empty(owner, places, blocks),
        };
        self.put_copy(&extent, Rc::new(copy));
        Ok(())
    }
}
