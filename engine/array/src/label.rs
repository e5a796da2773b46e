//! The label (superblock) of a disk: which pool it belongs to and what lies where. Written here, read here.
//!
//! ```text
//!   0  magic "kura-dsk"   8  CRC u32 (over the 4096 bytes, itself as zero)  12  version u32
//!  16  pool UUID  32  generation u64  40  id u16  42  controllers u16  44  members u16  46  zero u16
//!  48  extent bytes u64  56  pages at u64  64  extents at u64  72  extents u32  76  spare blocks u32
//!  80  tables bytes u64  88  ring bytes u64
//!  96  members: UUID, class u8, journal u8 (0 none, 1 + copy), gone u8, zero u8, extents u32 each
//! ```
//! Two copies, at 0 and 4096; the generation says which one is written next and which one counts.

use crate::plan::{JOURNALS_AT, Plan};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Buf, DeviceId, Error, Reader, Result, Writer, is_sealed};

const MAGIC: [u8; 8] = *b"kura-dsk";
const VERSION: u32 = 4;
/// Of a pool with room to float, which a kura that knows nothing of that must not open.
const FLOATING_VERSION: u32 = 5;
const CRC_AT: usize = 8;
/// The most disks a pool takes: their members fit a label.
const MEMBERS_LIMIT: usize = 128;
/// Copies of a journal have numbers below this: which ones live is told as bits of a word.
const COPIES_LIMIT: u8 = 32;
/// No part of a journal is larger.
const JOURNAL_MOST_BYTES: u64 = 1 << 44;

/// What a disk is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Journals, the fast tier, and data where slow disks are too few for it.
    Fast,
    /// Data.
    Slow,
}

impl Class {
    /// True where disks of this class take the data of volumes that lie on `width` disks, in a pool that has disks of these: slow
    /// ones do, or all where fewer are slow.
    pub fn takes_data(self, width: usize, in_pool: impl Iterator<Item = Self>) -> bool {
        self == Self::Slow || in_pool.filter(|class| *class == Self::Slow).count() < width
    }
}

/// The journals on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPart {
    /// Bytes of each of a journal's two areas for tables.
    pub tables_bytes: u64,
    /// Bytes of a journal's ring.
    pub ring_bytes: u64,
}

/// A disk of the pool as every label knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelMember {
    /// The disk's UUID.
    pub uuid: [u8; 16],
    /// What it is used for.
    pub class: Class,
    /// The copy of each journal that it carries, if it does.
    pub journal: Option<u8>,
    /// True when it has left the pool: its number is never used again.
    pub gone: bool,
    /// Extents on it.
    pub extents: u32,
}

/// A disk's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// UUID of the pool.
    pub pool: [u8; 16],
    /// Counts up with each change of the pool's membership.
    pub generation: u64,
    /// This disk's place among the members.
    pub id: DeviceId,
    /// Controllers of the pool: each has a journal.
    pub controllers: u16,
    /// What lies where on this disk.
    pub plan: Plan,
    /// Sizes of the journals, the same on every journal disk.
    pub journal: JournalPart,
    /// All disks of the pool, by id.
    pub members: Vec<LabelMember>,
}

impl Label {
    /// This disk's own entry.
    pub fn own(&self) -> LabelMember {
        self.members[usize::from(self.id.0)]
    }

    /// Refuses more disks than a label has room for: to be asked before anything is written.
    pub fn check_members(count: usize) -> Result<()> {
        if count <= MEMBERS_LIMIT {
            return Ok(());
        }
        Err(Error::full(format!("a pool takes {MEMBERS_LIMIT} disks, those that have left it counted")))
    }

    /// Where the region of a controller's journal begins on a journal disk, for regions of `region_bytes`.
    pub fn journal_at(controller: u16, region_bytes: u64) -> u64 {
        JOURNALS_AT + u64::from(controller) * region_bytes
    }

    fn encode(&self) -> Result<Buf> {
        Self::check_members(self.members.len())?;
        let mut out = Writer::new();
        let version = if self.plan.spare_blocks > 0 { FLOATING_VERSION } else { VERSION };
        out.bytes(&MAGIC).u32(0).u32(version).bytes(&self.pool).u64(self.generation);
        out.u16(self.id.0).u16(self.controllers).u16(self.members.len() as u16).u16(0);
        let plan = self.plan;
        out.u64(plan.extent_bytes).u64(plan.pages_at).u64(plan.extents_at).u32(plan.extents).u32(plan.spare_blocks);
        out.u64(self.journal.tables_bytes).u64(self.journal.ring_bytes);
        for member in &self.members {
            let class = match member.class {
                Class::Fast => 0,
                Class::Slow => 1,
            };
            let journal = member.journal.map_or(0, |copy| copy + 1);
            out.bytes(&member.uuid).u8(class).u8(journal).u8(u8::from(member.gone)).u8(0).u32(member.extents);
        }
        out.pad_to(BLOCK_BYTES);
        out.seal(CRC_AT);
        Ok(Buf::copy_of(out.as_slice()))
    }

    fn decode(block: &[u8]) -> Result<Option<Self>> {
        let mut reader = Reader::new(block);
        if reader.array()? != MAGIC || !is_sealed(block, CRC_AT) {
            return Ok(None);
        }
        reader.u32()?;
        let version = reader.u32()?;
        if ![VERSION, FLOATING_VERSION].contains(&version) {
            return Err(Error::invalid(format!(
                "the disk has format {version} and this kura reads {VERSION} and {FLOATING_VERSION}: use the kura that wrote it"
            )));
        }
        let (pool, generation) = (reader.array()?, reader.u64()?);
        let (id, controllers, count, _) = (DeviceId(reader.u16()?), reader.u16()?, reader.u16()?, reader.u16()?);
        let (extent_bytes, pages_at, extents_at) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (extents, spare_blocks) = (reader.u32()?, reader.u32()?);
        let journal = JournalPart { tables_bytes: reader.u64()?, ring_bytes: reader.u64()? };
        let mut members = Vec::new();
        for _ in 0..count {
            let uuid = reader.array()?;
            let class = if reader.u8()? == 0 { Class::Fast } else { Class::Slow };
            let (journal, gone, zero) = (reader.u8()?.checked_sub(1), reader.u8()? != 0, reader.u8()?);
            if zero != 0 {
                return Err(Error::invalid(
                    "the disk's label says of a member what this kura does not know: use the kura that wrote it",
                ));
            }
            members.push(LabelMember { uuid, class, journal, gone, extents: reader.u32()? });
        }
        if usize::from(id.0) >= members.len() {
            return Err(Error::corrupt(format!("the disk's label says it is disk {} of {count}", id.0)));
        }
        let plan = Plan { extent_bytes, pages_at, extents_at, extents, spare_blocks };
        let label = Self { pool, generation, id, controllers, plan, journal, members };
        if !label.is_sound() {
            return Err(Error::corrupt("the disk's label says what no kura writes: it was damaged, or made up"));
        }
        Ok(Some(label))
    }

    /// True for what [`write_label`] is given, whatever else a checksum agrees with.
    fn is_sound(&self) -> bool {
        let JournalPart { tables_bytes, ring_bytes } = self.journal;
        let parts = [tables_bytes, ring_bytes];
        self.controllers > 0
            && self.generation < u64::MAX / 2
            && self.plan.is_sound()
            && parts.iter().all(|part| part.is_multiple_of(BLOCK_BYTES_U64) && *part <= JOURNAL_MOST_BYTES)
            && self.members.len() <= MEMBERS_LIMIT
            && self.members.iter().all(|member| member.journal.is_none_or(|copy| copy < COPIES_LIMIT))
    }
}

/// True when `start`, the first bytes of a disk, has a label of any version in one of its two places.
pub fn has_label(start: &[u8]) -> bool {
    [0, BLOCK_BYTES].iter().any(|at| start.get(*at..).is_some_and(|label| label.starts_with(&MAGIC)))
}

/// The newest label of a disk; `None` where there is none. An error only when neither copy can be read.
pub async fn read_label(device: &dyn Block) -> Result<Option<Label>> {
    let mut newest: Option<Label> = None;
    if device.geometry().size_bytes < 2 * BLOCK_BYTES_U64 {
        return Ok(None);
    }
    let mut unreadable = Vec::new();
    for slot in 0..2 {
        let block = match device.read(slot * BLOCK_BYTES_U64, BLOCK_BYTES).await {
            Ok(block) => block.contiguous(),
            Err(error) => {
                unreadable.push(error);
                continue;
            }
        };
        if let Some(label) = Label::decode(&block)?
            && newest.as_ref().is_none_or(|newest| newest.generation < label.generation)
        {
            newest = Some(label);
        }
    }
    match unreadable.pop() {
        Some(error) if newest.is_none() => Err(error),
        _ => Ok(newest),
    }
}

/// Writes a label durably, leaving the one before it in the other place; the first one goes to both.
pub async fn write_label(device: &dyn Block, label: &Label) -> Result<()> {
    let block = label.encode()?;
    let slot = |generation: u64| generation % 2 * BLOCK_BYTES_U64;
    if label.generation == 1 {
        device.write(slot(0), block.clone().into(), true).await?;
    }
    device.write(slot(label.generation), block.into(), true).await
}

/// Makes a disk that has left its pool one without a label.
pub async fn wipe_label(device: &dyn Block) -> Result<()> {
    device.write(0, Buf::copy_of(&[0; 2 * BLOCK_BYTES]).into(), true).await
}
