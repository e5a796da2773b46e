//! `kura tier`.

use crate::size::Size;
use clap::{Subcommand, ValueEnum};
use kura_admin::TierPin;

/// Commands on the tiers.
#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// Show the tiers, the policy, and its results
    Status,
    /// Show why a part of a volume is in the tier where it is
    Why {
        /// The volume's name
        volume: String,
        /// Which part: an offset in the volume, such as 3G
        #[arg(long, default_value = "0", value_name = "SIZE")]
        offset: Size,
    },
    /// Hold a volume in a tier, or let the policy decide again; floor and ceiling are cleared
    Pin {
        /// The volume's name
        volume: String,
        /// The tier
        #[arg(value_enum)]
        to: PinTo,
    },
    /// Set how much of a volume stays in the fast tier, and how much may be there
    Set {
        /// The volume's name
        volume: String,
        /// What stays in the fast tier once it is there; 0 for none
        #[arg(long, value_name = "SIZE", required_unless_present = "ceiling")]
        floor: Option<Size>,
        /// The most of it that may be in the fast tier; 0 for no limit
        #[arg(long, value_name = "SIZE")]
        ceiling: Option<Size>,
    },
    /// List the volumes with what pin and set said of each
    Rules,
    /// List the moves between the tiers, each with its reason
    Moves {
        /// Keep printing new moves until interrupted
        #[arg(long)]
        follow: bool,
    },
}

/// Where a volume is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PinTo {
    /// All of it in the fast tier, as far as there is room
    Fast,
    /// None of it in the fast tier
    Slow,
    /// The policy decides
    None,
}

impl From<PinTo> for TierPin {
    fn from(to: PinTo) -> Self {
        match to {
            PinTo::Fast => Self::Fast,
            PinTo::Slow => Self::Slow,
            PinTo::None => Self::None,
        }
    }
}
