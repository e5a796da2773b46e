//! The records of the journal: every change of a table, and every write. Written here, read here.
//!
//! ```text
//!  1 create   volume u64, spec, shape     2 delete   volume u64          3 size   volume u64, bytes u64
//!  4 map      volume u64, index u32 of a group's first extent, places u8, (disk u16, extent u32) each
//!  5 unmap    volume u64, index u32       6 write    volume u64, first block u64   (data: whole blocks)
//!  7 clear    volume u64, first block u64, blocks u64                    8 disk failed   disk u16
//!  9 move     as map: the group lies in these places from now on       10 disk leaving  disk u16
//! 11 parity   volume u64, stripe u64, born u64, rows u16, (row u16, written columns u32, rest u8) each
//!             (rest: 0 none, 1 given, 2 unknown; data: for each given one the XOR of the columns that are not written)
//! 12 hot extent  places as in map        13 hot extent gone   born u64
//! 14 hot blocks  u16, (born u64, slot u16, owner as in a hot page, old born u64 or 0, old slot u16) each, of one volume
//! 15 hot slots given up  u16, (born u64, slot u16) each
//! 16 settled    what the records before it say of stripes is complete and durable
//! 17 placed     volume u64, first block u64, blocks u16, checksum u32 each: written, and lies at its place
//! 18 ahead      volume u64, first block u64, places as in map, blocks u16, checksum u32 each: written, and lies there, not at its place
//! 19 succeed    as map: all of the extent lies there, which is its place from now on
//! 20 snapshot   pvol u64, svol u64, epoch u32, made u64 (seconds since 1970), pool volume u64, spec of the svol
//! 21 pool entries   pool volume u64, u16, (slot u64, owner u32, home u32, key u64, as in a page of a pool table) each
//! 22 hole       volume u64, group u32, birth u32
//! 23 no holes   volume u64, group u32
//! 24 roll back   volume u64, svol u64, since u32: the volume is what the svol is, but for what is born since
//! 25 rolled back   volume u64            26 left   svol u64: deleted, but for its volume, which is being rolled back to it
//! 30 promote  volume u64, index u32, places as in map: the extent has a fast copy there
//! 31 demote   volume u64, index u32: it has none any more
//! 32 tier rules  volume u64, rules (pin u8: 0 none, 1 fast, 2 slow; floor bytes u64, ceiling bytes u64)
//! 40 arriving  ticket u64 (0 in an image's first part, whose LSN the ticket is), from u16, bytes of the image u32
//!              (data: the part, in whole blocks)
//! 41 arrived  ticket u64      42 cancelled  ticket u64     43 departed  volume u64, to u16, ticket u64
//! 44 departure forgotten  to u16, ticket u64      45 drained  u8: 1 given no volumes from now on, 0 given some again
//!  shape: copies u8, columns u8, parity u8, chunk blocks u16
//!  spec: name text, bytes u64, layout u8, flags u8 (1 thick, 2 read-only)
//! ```

use crate::owner::OwnerRecord;
use crate::snapshot::VersionRecord;
use crate::tier::TierRules;
use kura_array::hot::{MirrorId, Owner};
use kura_array::{Layout, Place, Places, Shape};
use kura_block::{BLOCK_BYTES_U64, Checksum, DeviceId, Error, ExtentId, Reader, Result, Writer};

/// Room for the records of clients' writes, which are the most.
const COMMON_BYTES: usize = 32;

/// A volume to be made, or as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name: 1 to 255 bytes.
    pub name: String,
    /// Size in bytes; a multiple of 4096, above zero.
    pub size_bytes: u64,
    /// How its extents are laid on disks.
    pub layout: Layout,
    /// True takes all its space at once, so that no write can meet a full pool.
    pub thick: bool,
    /// True refuses writes.
    pub read_only: bool,
}

impl Spec {
    /// The largest volume, in bytes.
    pub const SIZE_LIMIT_BYTES: u64 = 1 << 50;

    /// Refuses a name or size that cannot be.
    pub fn check(&self) -> Result<()> {
        let name = &self.name;
        if name.is_empty()
            || name.len() > 255
            || name.chars().any(|letter| letter.is_control() || "/@".contains(letter))
        {
            return Err(Error::invalid(format!(
                "volume name {name:?}: give 1 to 255 bytes without / and @ and control characters"
            )));
        }
        Self::check_size(self.size_bytes)
    }

    /// Refuses a size that cannot be.
    pub fn check_size(size_bytes: u64) -> Result<()> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK_BYTES_U64) || size_bytes > Self::SIZE_LIMIT_BYTES {
            return Err(Error::invalid(format!(
                "a volume of {size_bytes} bytes: give a multiple of 4096 from 4096 to 1 PiB"
            )));
        }
        Ok(())
    }

    /// The name of a PoolVOL: no user can give it.
    pub(crate) fn pool_name(pvol: u64) -> String {
        format!("/pool/{pvol}")
    }

    /// True for a PoolVOL.
    pub(crate) fn is_pool(&self) -> bool {
        self.name.starts_with("/pool/")
    }

    /// The name of a snapshot that is deleted, but for its volume, which is being rolled back to it.
    pub(crate) fn left_name(svol: u64) -> String {
        format!("/left/{svol}")
    }

    /// True for what nobody sees: PoolVOLs, and snapshots that are deleted but for a roll-back.
    pub(crate) fn is_hidden(&self) -> bool {
        self.name.starts_with('/')
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        let flags = u8::from(self.thick) | u8::from(self.read_only) << 1;
        out.text(&self.name).u64(self.size_bytes).u8(self.layout.code()).u8(flags);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let (name, size_bytes) = (reader.text()?, reader.u64()?);
        let (layout, flags) = (Layout::from_code(reader.u8()?)?, reader.u8()?);
        Ok(Self { name, size_bytes, layout, thick: flags & 1 != 0, read_only: flags & 2 != 0 })
    }
}

/// A record's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Create { volume: u64, spec: Spec, shape: Shape },
    Delete { volume: u64 },
    Size { volume: u64, bytes: u64 },
    Map { volume: u64, index: u32, places: Places },
    Unmap { volume: u64, index: u32 },
    Write { volume: u64, first: u64 },
    Clear { volume: u64, first: u64, blocks: u64 },
    DiskFailed { device: DeviceId },
    Move { volume: u64, index: u32, places: Places },
    DiskLeaving { device: DeviceId },
    Parity { volume: u64, stripe: u64, born: u64, rows: Vec<ParityRow> },
    HotExtent { places: Places },
    HotExtentGone { born: u64 },
    HotBlocks { blocks: Vec<HotBlock> },
    HotGivenUp { slots: Vec<MirrorId> },
    Settled,
    Placed { volume: u64, first: u64, checksums: Vec<Checksum>, in_parity: bool },
    Ahead { volume: u64, first: u64, places: Places, checksums: Vec<Checksum> },
    Succeed { volume: u64, index: u32, places: Places },
    Versions(VersionRecord),
    Owner(OwnerRecord),
    Promote { volume: u64, index: u32, places: Places },
    Demote { volume: u64, index: u32 },
    TierRules { volume: u64, rules: TierRules },
}

/// Where a checkpoint writes out what a record changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// In pages.
    Pages,
    /// With the tables, or the record behind them: reading it there makes the change again.
    Change,
    /// With the tables.
    Whole,
}

/// A block that lies in the hot area from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HotBlock {
    pub id: MirrorId,
    pub owner: Owner,
    /// The slot it lay in before.
    pub old: Option<MirrorId>,
}

impl HotBlock {
    fn encode(&self, out: &mut Writer) {
        encode_mirror_id(self.id, out);
        Owner::encode(Some(self.owner), out);
        encode_mirror_id(self.old.unwrap_or(MirrorId { born: 0, slot: 0 }), out);
    }
}

fn encode_mirror_id(id: MirrorId, out: &mut Writer) {
    out.u64(id.born).u16(id.slot);
}

fn decode_mirror_id(reader: &mut Reader<'_>) -> Result<MirrorId> {
    Ok(MirrorId { born: reader.u64()?, slot: reader.u16()? })
}

fn encode_checksums(checksums: &[Checksum], out: &mut Writer) {
    out.u16(checksums.len() as u16);
    for checksum in checksums {
        out.u32(checksum.stored());
    }
}

fn decode_checksums(reader: &mut Reader<'_>) -> Result<Vec<Checksum>> {
    let holds_nothing = || Error::corrupt("a record places a block that holds nothing");
    (0..reader.u16()?).map(|_| Checksum::from_stored(reader.u32()?).ok_or_else(holds_nothing)).collect()
}

/// A row of a stripe that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParityRow {
    pub row: u16,
    /// Columns that are written, or were since the last checkpoint.
    pub written: u32,
    pub rest: Rest,
}

fn encode_rows(rows: &[ParityRow], out: &mut Writer) {
    out.u16(rows.len() as u16);
    for row in rows {
        out.u16(row.row).u32(row.written).u8(row.rest as u8);
    }
}

/// The columns of a row that are not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There are none.
    None,
    /// Their XOR is among the record's data.
    Given,
    /// Nobody knows: the row has no parity, or too much of it is lost.
    Unknown,
}

impl Rest {
    fn of_code(code: u8) -> Result<Self> {
        match code {
            0 => Ok(Self::None),
            1 => Ok(Self::Given),
            2 => Ok(Self::Unknown),
            _ => Err(Error::corrupt(format!("a rest of kind {code} in a record is unknown"))),
        }
    }
}

pub(crate) fn encode_shape(shape: Shape, out: &mut Writer) {
    let parity = u8::from(shape.parity) + u8::from(shape.floats);
    out.u8(shape.copies).u8(shape.columns).u8(parity).u16(shape.chunk_blocks);
}

pub(crate) fn decode_shape(reader: &mut Reader<'_>) -> Result<Shape> {
    let (copies, columns, parity, chunk_blocks) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u16()?);
    let shape = Shape { copies, columns, parity: parity > 0, floats: parity > 1, chunk_blocks };
    let sane = copies > 0 && (1..=Shape::COLUMNS_LIMIT).contains(&columns) && chunk_blocks.is_power_of_two();
    if sane { Ok(shape) } else { Err(Error::corrupt(format!("{shape:?} in a record is no shape"))) }
}

pub(crate) fn encode_places(places: &[Place], out: &mut Writer) {
    out.u8(places.len() as u8);
    for place in places {
        out.u16(place.device.0).u32(place.extent.0);
    }
}

pub(crate) fn decode_places(reader: &mut Reader<'_>) -> Result<Places> {
    (0..reader.u8()?).map(|_| Ok(Place { device: DeviceId(reader.u16()?), extent: ExtentId(reader.u32()?) })).collect()
}

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_room(COMMON_BYTES);
        match self {
            Self::Create { volume, spec, shape } => {
                spec.encode(out.u8(1).u64(*volume));
                encode_shape(*shape, &mut out);
            }
            Self::Delete { volume } => {
                out.u8(2).u64(*volume);
            }
            Self::Size { volume, bytes } => {
                out.u8(3).u64(*volume).u64(*bytes);
            }
            Self::Map { volume, index, places } => encode_places(places, out.u8(4).u64(*volume).u32(*index)),
            Self::Unmap { volume, index } => {
                out.u8(5).u64(*volume).u32(*index);
            }
            Self::Write { volume, first } => {
                out.u8(6).u64(*volume).u64(*first);
            }
            Self::Clear { volume, first, blocks } => {
                out.u8(7).u64(*volume).u64(*first).u64(*blocks);
            }
            Self::DiskFailed { device } => {
                out.u8(8).u16(device.0);
            }
            Self::Move { volume, index, places } => encode_places(places, out.u8(9).u64(*volume).u32(*index)),
            Self::DiskLeaving { device } => {
                out.u8(10).u16(device.0);
            }
            Self::Parity { volume, stripe, born, rows } => {
                encode_rows(rows, out.u8(11).u64(*volume).u64(*stripe).u64(*born));
            }
            Self::HotExtent { places } => encode_places(places, out.u8(12)),
            Self::HotExtentGone { born } => {
                out.u8(13).u64(*born);
            }
            Self::HotBlocks { blocks } => {
                out.u8(14).u16(blocks.len() as u16);
                for block in blocks {
                    block.encode(&mut out);
                }
            }
            Self::Settled => {
                out.u8(16);
            }
            Self::Placed { volume, first, checksums, in_parity } => {
                encode_checksums(checksums, out.u8(if *in_parity { 27 } else { 17 }).u64(*volume).u64(*first));
            }
            Self::Ahead { volume, first, places, checksums } => {
                encode_places(places, out.u8(18).u64(*volume).u64(*first));
                encode_checksums(checksums, &mut out);
            }
            Self::Succeed { volume, index, places } => encode_places(places, out.u8(19).u64(*volume).u32(*index)),
            Self::Versions(record) => record.encode(&mut out),
            Self::Owner(record) => record.encode(&mut out),
            Self::Promote { volume, index, places } => encode_places(places, out.u8(30).u64(*volume).u32(*index)),
            Self::Demote { volume, index } => {
                out.u8(31).u64(*volume).u32(*index);
            }
            Self::TierRules { volume, rules } => rules.encode(out.u8(32).u64(*volume)),
            Self::HotGivenUp { slots } => {
                out.u8(15).u16(slots.len() as u16);
                for slot in slots {
                    encode_mirror_id(*slot, &mut out);
                }
            }
        }
        out.finish()
    }

    /// The volume that a record names, or one of the family that it names.
    pub fn volume(&self) -> Option<u64> {
        match self {
            Self::Create { volume, .. }
            | Self::Delete { volume }
            | Self::Size { volume, .. }
            | Self::Map { volume, .. }
            | Self::Unmap { volume, .. }
            | Self::Write { volume, .. }
            | Self::Clear { volume, .. }
            | Self::Placed { volume, .. }
            | Self::Ahead { volume, .. }
            | Self::Succeed { volume, .. }
            | Self::Move { volume, .. }
            | Self::Parity { volume, .. }
            | Self::Promote { volume, .. }
            | Self::Demote { volume, .. }
            | Self::TierRules { volume, .. } => Some(*volume),
            Self::Versions(record) => Some(record.volume()),
            Self::HotBlocks { blocks } => blocks.first().map(|block| block.owner.volume),
            Self::HotExtent { .. }
            | Self::HotExtentGone { .. }
            | Self::HotGivenUp { .. }
            | Self::DiskFailed { .. }
            | Self::DiskLeaving { .. }
            | Self::Settled
            | Self::Owner(_) => None,
        }
    }

    /// Where what it changes is written out.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Write { .. }
            | Self::Clear { .. }
            | Self::Parity { .. }
            | Self::HotBlocks { .. }
            | Self::HotGivenUp { .. }
            | Self::Settled
            | Self::Placed { .. }
            | Self::Ahead { .. }
            | Self::Versions(VersionRecord::PoolEntries { .. }) => Effect::Pages,
            Self::Size { .. }
            | Self::Map { .. }
            | Self::Succeed { .. }
            | Self::Unmap { .. }
            | Self::Move { .. }
            | Self::DiskFailed { .. }
            | Self::DiskLeaving { .. }
            | Self::HotExtent { .. }
            | Self::HotExtentGone { .. }
            | Self::Promote { .. }
            | Self::Demote { .. }
            | Self::TierRules { .. } => Effect::Change,
            Self::Create { .. } | Self::Delete { .. } | Self::Versions(_) | Self::Owner(_) => Effect::Whole,
        }
    }

    pub fn decode(body: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(body);
        let record = match reader.u8()? {
            1 => Self::Create {
                volume: reader.u64()?,
                spec: Spec::decode(&mut reader)?,
                shape: decode_shape(&mut reader)?,
            },
            2 => Self::Delete { volume: reader.u64()? },
            3 => Self::Size { volume: reader.u64()?, bytes: reader.u64()? },
            4 => Self::Map { volume: reader.u64()?, index: reader.u32()?, places: decode_places(&mut reader)? },
            5 => Self::Unmap { volume: reader.u64()?, index: reader.u32()? },
            6 => Self::Write { volume: reader.u64()?, first: reader.u64()? },
            7 => Self::Clear { volume: reader.u64()?, first: reader.u64()?, blocks: reader.u64()? },
            8 => Self::DiskFailed { device: DeviceId(reader.u16()?) },
            9 => Self::Move { volume: reader.u64()?, index: reader.u32()?, places: decode_places(&mut reader)? },
            10 => Self::DiskLeaving { device: DeviceId(reader.u16()?) },
            11 => {
                let (volume, stripe, born, rows) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u16()?);
                let mut row =
                    || Ok(ParityRow { row: reader.u16()?, written: reader.u32()?, rest: Rest::of_code(reader.u8()?)? });
                Self::Parity { volume, stripe, born, rows: (0..rows).map(|_| row()).collect::<Result<_>>()? }
            }
            12 => Self::HotExtent { places: decode_places(&mut reader)? },
            13 => Self::HotExtentGone { born: reader.u64()? },
            14 => {
                let count = reader.u16()?;
                let mut block = || {
                    let (id, owner) = (decode_mirror_id(&mut reader)?, Owner::decode(&mut reader)?);
                    let owner = owner.ok_or_else(|| Error::corrupt("a record names a hot block of no volume"))?;
                    let old = Some(decode_mirror_id(&mut reader)?).filter(|old| old.born != 0);
                    Ok(HotBlock { id, owner, old })
                };
                Self::HotBlocks { blocks: (0..count).map(|_| block()).collect::<Result<_>>()? }
            }
            15 => {
                let count = reader.u16()?;
                Self::HotGivenUp { slots: (0..count).map(|_| decode_mirror_id(&mut reader)).collect::<Result<_>>()? }
            }
            16 => Self::Settled,
            kind @ (17 | 27) => Self::Placed {
                volume: reader.u64()?,
                first: reader.u64()?,
                checksums: decode_checksums(&mut reader)?,
                in_parity: kind == 27,
            },
            18 => Self::Ahead {
                volume: reader.u64()?,
                first: reader.u64()?,
                places: decode_places(&mut reader)?,
                checksums: decode_checksums(&mut reader)?,
            },
            19 => Self::Succeed { volume: reader.u64()?, index: reader.u32()?, places: decode_places(&mut reader)? },
            kind @ 20..=26 => Self::Versions(VersionRecord::decode(kind, &mut reader)?),
            30 => Self::Promote { volume: reader.u64()?, index: reader.u32()?, places: decode_places(&mut reader)? },
            31 => Self::Demote { volume: reader.u64()?, index: reader.u32()? },
            kind @ 40..=45 => Self::Owner(OwnerRecord::decode(kind, &mut reader)?),
            32 => Self::TierRules { volume: reader.u64()?, rules: TierRules::decode(&mut reader)? },
            kind => {
                return Err(Error::corrupt(format!(
                    "a journal record of kind {kind} is unknown: a newer kura wrote it"
                )));
            }
        };
        if reader.is_done() { Ok(record) } else { Err(Error::corrupt("a journal record is longer than its fields")) }
    }
}
