//! The records of ownership: which kind each is stands with the other records.

use kura_block::{ControllerId, Error, Reader, Result, Writer};

/// What happens to a family that changes its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerRecord {
    /// A part of an image, of `bytes` bytes in all; ticket 0 in the first one, whose LSN the ticket is.
    Arriving {
        ticket: u64,
        from: ControllerId,
        bytes: u32,
    },
    Arrived {
        ticket: u64,
    },
    Cancelled {
        ticket: u64,
    },
    /// The family of a volume is another controller's.
    Departed {
        volume: u64,
        to: ControllerId,
        ticket: u64,
    },
    /// That controller has it durably.
    Forgotten {
        to: ControllerId,
        ticket: u64,
    },
    /// This controller takes no volumes from here on, or takes them again.
    Drained {
        drained: bool,
    },
}

impl OwnerRecord {
    pub fn encode(&self, out: &mut Writer) {
        match self {
            Self::Arriving { ticket, from, bytes } => out.u8(40).u64(*ticket).u16(from.0).u32(*bytes),
            Self::Arrived { ticket } => out.u8(41).u64(*ticket),
            Self::Cancelled { ticket } => out.u8(42).u64(*ticket),
            Self::Departed { volume, to, ticket } => out.u8(43).u64(*volume).u16(to.0).u64(*ticket),
            Self::Forgotten { to, ticket } => out.u8(44).u16(to.0).u64(*ticket),
            Self::Drained { drained } => out.u8(45).u8(u8::from(*drained)),
        };
    }

    /// Reads a record of this kind, whose kind has been read.
    pub fn decode(kind: u8, reader: &mut Reader<'_>) -> Result<Self> {
        let controller = |reader: &mut Reader<'_>| Ok::<_, Error>(ControllerId(reader.u16()?));
        Ok(match kind {
            40 => Self::Arriving { ticket: reader.u64()?, from: controller(reader)?, bytes: reader.u32()? },
            41 => Self::Arrived { ticket: reader.u64()? },
            42 => Self::Cancelled { ticket: reader.u64()? },
            43 => Self::Departed { volume: reader.u64()?, to: controller(reader)?, ticket: reader.u64()? },
            44 => Self::Forgotten { to: controller(reader)?, ticket: reader.u64()? },
            45 => Self::Drained { drained: reader.u8()? != 0 },
            _ => return Err(Error::corrupt(format!("a record of kind {kind} is none of ownership"))),
        })
    }
}
