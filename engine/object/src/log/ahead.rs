//! Segments that follow one another, read ahead: a start waits for the device's bandwidth, not for each read in turn.
//!
//! The log and a checkpoint are chains of segments: the first block of each names the next. A chain is followed by those
//! blocks alone, which is quick, while the segments behind it are read whole, several at a time:
//!
//! ```text
//!  first blocks   | 7 | 3 | 12 | 4 | 9 |                       one after another
//!  whole              [ 7      ]
//!                        [ 3       ]                            beside each other
//!                             [ 12      ]
//! ```
//!
//! What is read ahead is a guess, and only saves time: who reads says which segment comes next, and has it read anew where
//! the guess was another one.

use crate::space::extent::read_device;
use futures::StreamExt;
use futures::stream::{self, LocalBoxStream};
use kura_block::{BLOCK_BYTES, Block, Buf, Result};

/// Segments that are read at a time: with those in use, 40 MiB of memory at most.
pub(crate) const READS: usize = 8;

/// A chain of segments being read.
pub(crate) struct Ahead<'a> {
    device: &'a dyn Block,
    segment_bytes: u32,
    guesses: LocalBoxStream<'a, (u32, Result<Buf>)>,
}

impl<'a> Ahead<'a> {
    /// The chain begins with the segments `known`; of every other one, the first block of the one before says by
    /// `next_of` which it is, if there is one.
    pub fn new(
        device: &'a dyn Block,
        segment_bytes: u32,
        known: Vec<u32>,
        next_of: impl FnMut(&[u8]) -> Option<u32> + 'a,
    ) -> Self {
        let link = known.last().map(|last| (*last, next_of));
        let others = stream::unfold(link, move |link| async move {
            let (at, mut next_of) = link?;
            let block = read(device, segment_bytes, at, BLOCK_BYTES).await.ok()?;
            let next = next_of(&block)?;
            Some((next, Some((next, next_of))))
        });
        let whole =
            move |segment| async move { (segment, read(device, segment_bytes, segment, segment_bytes as usize).await) };
        let guesses = stream::iter(known).chain(others).map(whole).buffered(READS).boxed_local();
        Self { device, segment_bytes, guesses }
    }

    /// The next segment of the chain, which is `segment`, whole.
    pub async fn next(&mut self, segment: u32) -> Result<Buf> {
        match self.guesses.next().await {
            Some((guess, bytes)) if guess == segment => bytes,
            _ => {
                self.guesses = stream::empty().boxed_local();
                read(self.device, self.segment_bytes, segment, self.segment_bytes as usize).await
            }
        }
    }
}

async fn read(device: &dyn Block, segment_bytes: u32, segment: u32, len: usize) -> Result<Buf> {
    let place = u64::from(segment) * u64::from(segment_bytes);
    Ok(read_device(device, place, len).await?.contiguous())
}
