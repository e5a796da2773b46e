//! What the user says of a volume's place in the tiers.

use kura_block::{Amount, Error, Reader, Result, Writer};

/// The tier a volume is held in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// The policy decides.
    #[default]
    None,
    /// All of it goes to the fast tier, as far as there is room.
    Fast,
    /// None of it does.
    Slow,
}

/// What the user says of a volume's place in the tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierRules {
    /// The tier it is held in.
    pub pin: Pin,
    /// Bytes of it that nothing but its owner's own data may push out of the fast tier; 0 is none.
    pub floor_bytes: u64,
    /// The most bytes of it in the fast tier; 0 is no limit.
    pub ceiling_bytes: u64,
}

/// A change of what is said of a volume: what it does not name stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierChange {
    /// The tier it is held in from now on.
    pub pin: Option<Pin>,
    /// See [`TierRules::floor_bytes`].
    pub floor_bytes: Option<u64>,
    /// See [`TierRules::ceiling_bytes`].
    pub ceiling_bytes: Option<u64>,
}

impl TierRules {
    /// These after a change.
    pub fn changed(self, change: TierChange) -> Self {
        Self {
            pin: change.pin.unwrap_or(self.pin),
            floor_bytes: change.floor_bytes.unwrap_or(self.floor_bytes),
            ceiling_bytes: change.ceiling_bytes.unwrap_or(self.ceiling_bytes),
        }
    }

    /// Refuses rules that contradict each other.
    pub fn check(&self) -> Result<()> {
        let (floor, ceiling) = (self.floor_bytes, self.ceiling_bytes);
        if ceiling > 0 && floor > ceiling {
            return Err(Error::invalid(format!(
                "a floor of {} above a ceiling of {}: give a floor that is not larger",
                Amount(floor),
                Amount(ceiling)
            )));
        }
        if self.pin != Pin::None && (floor > 0 || ceiling > 0) {
            return Err(Error::invalid(
                "a pinned volume has no floor and no ceiling, as the policy does not decide about it: `kura tier pin VOLUME none` first",
            ));
        }
        Ok(())
    }

    pub(crate) fn encode(self, out: &mut Writer) {
        out.u8(self.pin as u8).u64(self.floor_bytes).u64(self.ceiling_bytes);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let pin = match reader.u8()? {
            0 => Pin::None,
            1 => Pin::Fast,
            2 => Pin::Slow,
            code => return Err(Error::corrupt(format!("pin {code} in a record is unknown"))),
        };
        Ok(Self { pin, floor_bytes: reader.u64()?, ceiling_bytes: reader.u64()? })
    }
}
