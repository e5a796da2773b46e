//! What belongs on the fast tier.
//!
//! A volume (the paper's LUN) is cut into regions of equal size (its subLUNs). At the end of every interval a
//! [`Policy`] is told the I/O of each region and what the tiers are like ([`Facts`]), and answers with moves
//! ([`Decision`]), each with its [`Reason`]. Whoever calls it counts, moves and measures; nothing here does I/O, and
//! nothing knows the time but from the facts.
//!
//! ```text
//!   counts, utilisation, costs ──> Facts ──> Policy::decide ──> Decision ──> moves up, moves down, their pace
//!                                              └ state: streaks, heat          └ each with its reason
//! ```
//!
//! The paper is the one on on-the-fly automated storage tiering: [`OtfAst`] is its algorithm to the letter, [`Fixed`]
//! the static tiering it is held against, [`Worth`] the default; the LRU block cache beside them decides on every request, and so is
//! no policy: it is the lab's.

mod decision;
mod facts;
mod policy;

pub use decision::{Decision, Move, Pace, Reason, Standing};
pub use facts::{Costs, Facts, Heat, Placed, SlowLoad, Space, Tier, VolumeFacts, Wants};
pub use policy::{Fixed, FixedSettings, OtfAst, OtfAstSettings, Policy, Settings, Worth, WorthSettings};
