//! Extents that lie in copies: which of them is read, and how they agree.

use crate::array::{Array, Member};
use crate::layout::Place;
use crate::policy::choose_copy;
use crate::queue::Urgency;
use kura_block::{BLOCK_BYTES, Bufs, Checksum, DeviceId, Error, Result};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Blocks that a copy is asked for singly and refuses before another copy is asked for the rest: each may take a disk seconds.
const MOST_REFUSALS: usize = 2;

/// Bytes that agree with their checksums.
#[derive(Debug)]
pub struct Verified {
    /// The bytes.
    pub data: Bufs,
    /// Blocks (counted from the read's first) of which some copy is bad and ought to be written again.
    pub damaged: Vec<usize>,
}

/// Why a copy of a block is bad.
enum Bad {
    /// It does not agree with its checksum.
    Rotten,
    /// Its disk refuses to read it by itself.
    Refused(Error),
    /// It was not asked for by itself, after others that its disk refused.
    NotAsked(Error),
    /// Its disk reads nothing, and is not asked for it by itself.
    Silent(Error),
}

/// A copy of a block that is not what was written, as far as who read it knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadCopy {
    /// The block, counted from the first one asked for.
    pub block: usize,
    /// The disk that has it.
    pub disk: DeviceId,
    /// It was read, and does not agree with its checksum; else its disk refused.
    pub is_rotten: bool,
}

/// How the copies of some blocks agree with their checksums; blocks are counted from the first one asked for.
#[derive(Debug)]
pub struct Agreement {
    /// Copies that are bad. Nothing is counted of them before [`Array::confirm`].
    pub bad: Vec<BadCopy>,
    /// For each block, true when no working copy is good.
    pub lost: Vec<bool>,
}

impl Array {
    /// Reads blocks of an extent that lies in copies, from its block `first` on, one for each expected checksum. A copy
    /// that is bad is passed over; `Corrupt` when a block has no good copy, `Device` when its disks do not work, or one that
    /// works refuses to read what would have been the good copy.
    pub async fn read(
        &self,
        places: &[Place],
        first: usize,
        expected: &[Checksum],
        urgency: Urgency,
    ) -> Result<Verified> {
        let mut copies: Vec<_> = self.working(places).collect();
        let Some(chosen) = self.nearest(&copies, first) else {
            return Err(Error::device(format!("no working disk holds {}", Self::name(places))));
        };
        copies.swap(0, chosen);
        let mut blocks: Vec<Option<Bufs>> = vec![None; expected.len()];
        let mut refused: Vec<Option<Error>> = vec![None; expected.len()];
        let (mut damaged, mut not_asked) = (BTreeSet::new(), BTreeSet::new());
        // What one of them refuses another one may have at once: none is asked for all of its blocks singly before.
        let turns = [MOST_REFUSALS, usize::MAX]
            .into_iter()
            .flat_map(|most| copies.iter().enumerate().map(move |copy| (most, copy)));
        for (most, (which, copy)) in turns {
            let wanted =
                |at: &usize| blocks[*at].is_none() && (most == MOST_REFUSALS || not_asked.contains(&(which, *at)));
            let missing: Vec<_> = (0..blocks.len()).filter(wanted).collect();
            for run in missing.chunk_by(|one, next| one + 1 == *next) {
                let (from, wanted) = (first + run[0], &expected[run[0]..][..run.len()]);
                let read = self.read_held(copy, from, wanted, urgency).await;
                if let Ok((data, bad)) = &read
                    && run.len() == blocks.len()
                    && bad.is_empty()
                    && damaged.is_empty()
                {
                    return Ok(Verified { data: data.clone(), damaged: Vec::new() });
                }
                for (at, block) in run.iter().zip(self.each(copy, read, from, wanted, (urgency, most)).await) {
                    match block {
                        Ok(block) => blocks[*at] = Some(block),
                        // Nothing can be written again there.
                        Err(_) if !copy.0.works() => {}
                        Err(Bad::Rotten) => {
                            copy.0.count_checksum_errors(1);
                            damaged.insert(*at);
                        }
                        Err(Bad::Refused(error)) => {
                            damaged.insert(*at);
                            refused[*at] = Some(error);
                        }
                        Err(Bad::NotAsked(error)) => {
                            not_asked.insert((which, *at));
                            refused[*at] = Some(error);
                        }
                        Err(Bad::Silent(error)) => refused[*at] = Some(error),
                    }
                }
            }
        }
        let mut whole = Bufs::new();
        for (at, (block, refused)) in blocks.into_iter().zip(refused).enumerate() {
            let name = || Self::name(&copies.iter().map(|(_, place)| *place).collect::<Vec<_>>());
            whole.append(block.ok_or_else(|| match refused {
                Some(error) => refused_at(&error, first + at, &name()),
                None => Error::corrupt(format!("no copy of block {} of {} is good", first + at, name())),
            })?);
        }
        Ok(Verified { data: whole, damaged: damaged.into_iter().collect() })
    }

    /// Reads blocks of a copy; also which of them do not agree with their checksum.
    async fn read_held(
        &self,
        (member, place): &(Rc<Member>, Place),
        first: usize,
        expected: &[Checksum],
        urgency: Urgency,
    ) -> Result<(Bufs, Vec<usize>)> {
        let data = self.read_copy(member, *place, first, expected.len(), urgency).await?;
        let bad = mismatches(&data, expected);
        Ok((data, bad))
    }

    /// What a read of a copy came to, block by block. What was refused with its neighbours may be read by itself; of a disk that
    /// reads nothing that is not asked, nor after so many refusals.
    async fn each(
        &self,
        copy: &(Rc<Member>, Place),
        read: Result<(Bufs, Vec<usize>)>,
        first: usize,
        expected: &[Checksum],
        (urgency, most): (Urgency, usize),
    ) -> Vec<std::result::Result<Bufs, Bad>> {
        let error = match read {
            Ok((data, bad)) => {
                let block = |at: usize| if bad.contains(&at) { Err(Bad::Rotten) } else { Ok(block_of(&data, at)) };
                return (0..expected.len()).map(block).collect();
            }
            Err(error) => error,
        };
        let mut blocks = Vec::new();
        if expected.len() == 1 || !self.answers(copy.0.id).await {
            blocks.resize_with(expected.len(), || Err(Bad::Silent(error.clone())));
            // Writing one again tells whether the disk does anything at all.
            blocks[0] = Err(Bad::Refused(error));
            return blocks;
        }
        let mut refusals = 0;
        for at in 0..expected.len() {
            if refusals == most {
                blocks.push(Err(Bad::NotAsked(error.clone())));
                continue;
            }
            let alone = &expected[at..=at];
            let read = self.read_held(copy, first + at, alone, urgency).await;
            refusals += usize::from(read.is_err());
            blocks.extend(Box::pin(self.each(copy, read, first + at, alone, (urgency, most))).await);
        }
        blocks
    }

    /// Reads blocks of one of several copies, from block `first` of their extents on; nothing is verified.
    pub async fn read_any(&self, places: &[Place], first: usize, blocks: usize, urgency: Urgency) -> Result<Bufs> {
        let copies: Vec<_> = self.working(places).collect();
        let Some((member, place)) = self.nearest(&copies, first).map(|chosen| &copies[chosen]) else {
            return Err(Error::device(format!("no working disk holds {}", Self::name(places))));
        };
        self.read_copy(member, *place, first, blocks, urgency).await
    }

    /// Which of these copies to read.
    fn nearest(&self, copies: &[(Rc<Member>, Place)], first: usize) -> Option<usize> {
        let offset = (first * BLOCK_BYTES) as u64;
        let facts = |(member, place): &(Rc<Member>, Place)| {
            let at = member.plan.extent_at(place.extent) + offset;
            let distance = if self.queue_depth > 0 { member.queue.distance(at) } else { 0 };
            Some((member.load.queue(), distance))
        };
        let queues: Vec<_> = copies.iter().map(facts).collect();
        choose_copy(&queues, offset)
    }

    /// Reads every working copy of blocks of an extent and holds each against its checksum. A block that its disk refuses
    /// to read is bad.
    pub async fn verify(&self, places: &[Place], first: usize, expected: &[Checksum]) -> Agreement {
        let mut found = Agreement { bad: Vec::new(), lost: vec![true; expected.len()] };
        for copy in self.working(places) {
            let read = self.read_held(&copy, first, expected, Urgency::Idle).await;
            for (at, block) in
                self.each(&copy, read, first, expected, (Urgency::Idle, usize::MAX)).await.into_iter().enumerate()
            {
                match block {
                    Ok(_) => found.lost[at] = false,
                    Err(bad) => {
                        let is_rotten = matches!(bad, Bad::Rotten);
                        found.bad.push(BadCopy { block: at, disk: copy.1.device, is_rotten });
                    }
                }
            }
        }
        found
    }

    /// Counts a copy as bad that [`Array::verify`] found, now that it is known to be what was meant: beside writes a copy may have been
    /// read that was newer.
    pub fn confirm(&self, bad: &BadCopy) {
        if let Some(member) = self.member(bad.disk).filter(|_| bad.is_rotten) {
            member.count_checksum_errors(1);
        }
    }
}

fn refused_at(error: &Error, block: usize, places: &str) -> Error {
    Error::device(format!(
        "a disk refused to read block {block} of {places}, of which no other copy is good: {error}: try again"
    ))
}

pub(crate) fn block_of(data: &Bufs, at: usize) -> Bufs {
    data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES)
}

/// Which blocks of `data` do not agree with their checksum.
pub(crate) fn mismatches(data: &Bufs, expected: &[Checksum]) -> Vec<usize> {
    let in_blocks = data.parts().iter().all(|part| part.len().is_multiple_of(BLOCK_BYTES));
    let data = if in_blocks { data.clone() } else { data.contiguous().into() };
    let found = data.parts().iter().flat_map(Checksum::of_blocks);
    let wrong = found.zip(expected).enumerate().filter(|(_, (found, expected))| found != *expected);
    wrong.map(|(at, _)| at).collect()
}
