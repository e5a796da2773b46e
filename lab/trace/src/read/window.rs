//! Order of time, restored within bounds.

use std::collections::VecDeque;

use crate::error::{Complaint, TraceError};
use crate::request::Request;

/// What reads items of one form, as they stand in a file.
pub trait Parser: Send {
    type Item;

    /// The next item; `None` after the last one.
    fn next(&mut self) -> Result<Option<Self::Item>, TraceError>;

    /// A complaint about the item given out last.
    fn complain(&self, complaint: Complaint) -> TraceError;

    /// Bytes read so far, and bytes in all, as they are stored.
    fn progress(&self) -> (u64, u64);

    /// How a user puts a file of this form in order.
    fn how_to_sort(&self) -> &'static str;
}

/// How many items are held back to be put in order. Recorders with a buffer for each processor, and those that stamp a
/// request when it begins and write it down when it ends, are out of order by no more than what is in flight.
pub const HELD_BACK: usize = 1024;

/// What happened at a time.
pub trait Timed {
    fn at_ns(&self) -> u64;
}

impl Timed for Request {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// Items in order of time; of one time, in the order in which they came.
pub struct Ordered<T> {
    parser: Box<dyn Parser<Item = T>>,
    held: VecDeque<T>,
    /// The time of the last item given out.
    given_ns: u64,
    at_end: bool,
}

impl<T: Timed> Ordered<T> {
    pub fn new(parser: Box<dyn Parser<Item = T>>) -> Ordered<T> {
        Ordered { parser, held: VecDeque::with_capacity(HELD_BACK + 1), given_ns: 0, at_end: false }
    }

    pub fn progress(&self) -> (u64, u64) {
        self.parser.progress()
    }

    /// The next item; `None` after the last one. Refused: an item that belongs before one that was given out.
    pub fn next(&mut self) -> Result<Option<T>, TraceError> {
        while !self.at_end && self.held.len() <= HELD_BACK {
            match self.parser.next()? {
                Some(item) => self.hold(item)?,
                None => self.at_end = true,
            }
        }
        let item = self.held.pop_front();
        self.given_ns = item.as_ref().map_or(self.given_ns, Timed::at_ns);
        Ok(item)
    }

    fn hold(&mut self, item: T) -> Result<(), TraceError> {
        let at_ns = item.at_ns();
        if at_ns < self.given_ns {
            let seconds = (self.given_ns - at_ns) as f64 / 1e9;
            let what =
                format!("out of order: this is {seconds:.6} s before what stands {HELD_BACK} and more before it");
            return Err(self.parser.complain(Complaint::new(what, self.parser.how_to_sort())));
        }
        if self.held.back().is_none_or(|last| last.at_ns() <= at_ns) {
            self.held.push_back(item);
        } else {
            let place = self.held.partition_point(|other| other.at_ns() <= at_ns);
            self.held.insert(place, item);
        }
        Ok(())
    }
}
