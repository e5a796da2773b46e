//! The records of snapshots: which kind each is stands with the other records.

use crate::record::Spec;
use kura_block::{Error, Reader, Result, Writer};
use kura_snapshot::{Entry, Epoch, Key, Rolled, Slot, Svol};

/// What happens to versions of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VersionRecord {
    Snapshot(Snapshot),
    PoolEntries {
        pool: u64,
        entries: Vec<(Slot, Option<Entry>)>,
    },
    Hole {
        volume: u64,
        group: u32,
        birth: Epoch,
    },
    NoHoles {
        volume: u64,
        group: u32,
    },
    RollBack {
        volume: u64,
        rolled: Rolled,
    },
    RolledBack {
        volume: u64,
    },
    /// A snapshot is deleted, but for its volume, which is being rolled back to it.
    Left {
        svol: u64,
    },
}

/// A snapshot that is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub svol: u64,
    pub of: Svol,
    pub made_unix_s: u64,
    /// The PoolVOL of both.
    pub pool: u64,
    pub spec: Spec,
}

impl VersionRecord {
    /// A volume of the family that the record is about.
    pub fn volume(&self) -> u64 {
        match self {
            Self::Snapshot(snapshot) => snapshot.of.pvol,
            Self::PoolEntries { pool, .. } => *pool,
            Self::Left { svol } => *svol,
            Self::Hole { volume, .. }
            | Self::NoHoles { volume, .. }
            | Self::RollBack { volume, .. }
            | Self::RolledBack { volume } => *volume,
        }
    }

    pub fn encode(&self, out: &mut Writer) {
        match self {
            Self::Snapshot(Snapshot { svol, of, made_unix_s, pool, spec }) => {
                out.u8(20).u64(of.pvol).u64(*svol).u32(of.epoch.0).u64(*made_unix_s).u64(*pool);
                spec.encode(out);
            }
            Self::PoolEntries { pool, entries } => {
                out.u8(21).u64(*pool).u16(entries.len() as u16);
                for (slot, entry) in entries {
                    let (owner, home, key) =
                        entry.map_or((0, 0, 0), |entry| (entry.owner, entry.home.0, entry.key.stored()));
                    out.u64(slot.0).u32(owner).u32(home).u64(key);
                }
            }
            Self::Hole { volume, group, birth } => {
                out.u8(22).u64(*volume).u32(*group).u32(birth.0);
            }
            Self::NoHoles { volume, group } => {
                out.u8(23).u64(*volume).u32(*group);
            }
            Self::RollBack { volume, rolled } => {
                out.u8(24).u64(*volume).u64(rolled.svol).u32(rolled.since.0);
            }
            Self::RolledBack { volume } => {
                out.u8(25).u64(*volume);
            }
            Self::Left { svol } => {
                out.u8(26).u64(*svol);
            }
        }
    }

    /// Reads a record of this kind, whose kind has been read.
    pub fn decode(kind: u8, reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match kind {
            20 => {
                let (pvol, svol, epoch) = (reader.u64()?, reader.u64()?, Epoch(reader.u32()?));
                let (made_unix_s, pool) = (reader.u64()?, reader.u64()?);
                let of = Svol { pvol, epoch };
                Self::Snapshot(Snapshot { svol, of, made_unix_s, pool, spec: Spec::decode(reader)? })
            }
            21 => {
                let (pool, count) = (reader.u64()?, reader.u16()?);
                let mut entry = || {
                    let (slot, owner, home) = (Slot(reader.u64()?), reader.u32()?, Epoch(reader.u32()?));
                    let key = Key::of_stored(reader.u64()?);
                    Ok((slot, (owner != 0).then_some(Entry { owner, key, home })))
                };
                Self::PoolEntries { pool, entries: (0..count).map(|_| entry()).collect::<Result<_>>()? }
            }
            22 => Self::Hole { volume: reader.u64()?, group: reader.u32()?, birth: Epoch(reader.u32()?) },
            23 => Self::NoHoles { volume: reader.u64()?, group: reader.u32()? },
            24 => {
                let (volume, svol, since) = (reader.u64()?, reader.u64()?, Epoch(reader.u32()?));
                Self::RollBack { volume, rolled: Rolled { svol, since } }
            }
            25 => Self::RolledBack { volume: reader.u64()? },
            26 => Self::Left { svol: reader.u64()? },
            _ => return Err(Error::corrupt(format!("a record of kind {kind} is none of a snapshot"))),
        })
    }
}
