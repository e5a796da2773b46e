//! When the housekeeper works, and at what. Pure: what it is asked for, what it sees and how its rounds end in, rounds out.

use crate::policy::VAIN_ENTRIES;

/// What a round can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Room: somebody waits for it.
    Room,
    /// The index written anew, whether that is due or not.
    Renewal,
    /// What is dead given back, though nobody waits for it.
    Tidying,
}

/// What a round was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    pub room: bool,
    pub renewal: bool,
    pub tidying: bool,
}

/// What the housekeeper sees of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    /// The log's newest entry.
    pub last_sequence: u64,
    /// The log is due for a checkpoint.
    pub is_long: bool,
    /// Few segments are free.
    pub is_low: bool,
    /// There is something to ask the device about its room.
    pub wants_to_ask: bool,
}

/// What is asked for, and what came of the rounds so far.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Rounds that ended.
    pub rounds: u64,
    /// Another one is under way.
    pub in_round: bool,
    asked: Round,
    /// The entry before which a round is in vain that nobody asks for: the last one gained nothing.
    vain_until: u64,
    /// The entry before which a checkpoint finds no room: the last round found none.
    full_until: u64,
}

impl Agenda {
    /// Asks for something: how many rounds have ended when one has that began behind this.
    pub fn ask(&mut self, what: Ask) -> u64 {
        match what {
            Ask::Room => self.asked.room = true,
            Ask::Renewal => self.asked.renewal = true,
            Ask::Tidying => self.asked.tidying = true,
        }
        self.rounds + if self.in_round { 2 } else { 1 }
    }

    /// True when there is something to do.
    pub fn is_due(&self, facts: Facts) -> bool {
        let asks = self.asked != Round::default();
        let checkpoint = facts.is_long && facts.last_sequence >= self.full_until;
        let cleaning = facts.is_low && facts.last_sequence >= self.vain_until;
        asks || checkpoint || facts.wants_to_ask || cleaning
    }

    /// Begins a round, where there is something to do. All that was asked for is this round's, however it ends: what it was refused
    /// would be refused to the next one at once, too, and whoever wants it still asks again.
    pub fn take(&mut self, facts: Facts) -> Option<Round> {
        if !self.is_due(facts) {
            return None;
        }
        self.in_round = true;
        Some(std::mem::take(&mut self.asked))
    }

    /// Ends the round under way, which gained room or not, and came to its end or found none.
    pub fn end(&mut self, last_sequence: u64, gained: bool, refused: bool) {
        self.in_round = false;
        self.rounds += 1;
        let later = last_sequence + VAIN_ENTRIES;
        if !gained {
            self.vain_until = later;
        }
        self.full_until = if refused { later } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Facts = Facts { last_sequence: 7, is_long: false, is_low: false, wants_to_ask: false };

    #[test]
    fn what_is_asked_for_is_one_rounds_however_that_ends() {
        for what in [Ask::Room, Ask::Renewal, Ask::Tidying] {
            let mut agenda = Agenda::default();
            assert_eq!(agenda.take(IDLE), None);
            agenda.ask(what);
            let round = agenda.take(IDLE).expect("it is asked for");
            let taken = (round.room, round.renewal, round.tidying);
            assert_eq!(taken, (what == Ask::Room, what == Ask::Renewal, what == Ask::Tidying));
            agenda.end(IDLE.last_sequence, false, true);
            assert_eq!(agenda.take(IDLE), None, "{what:?}");
        }
    }

    #[test]
    fn who_asks_waits_for_a_round_that_begins_behind_that() {
        let mut agenda = Agenda::default();
        assert_eq!(agenda.ask(Ask::Room), 1);
        agenda.take(IDLE).expect("it is asked for");
        // The round under way does not see it.
        assert_eq!(agenda.ask(Ask::Renewal), 2);
        agenda.end(IDLE.last_sequence, true, false);
        assert_eq!(agenda.rounds, 1);
        assert!(agenda.take(IDLE).expect("it is asked for").renewal);
    }

    #[test]
    fn what_nobody_asks_for_waits_for_a_change_once_it_was_in_vain() {
        for (facts, gained, refused) in [
            (Facts { is_low: true, ..IDLE }, false, false),
            (Facts { is_low: true, ..IDLE }, false, true),
            (Facts { is_long: true, ..IDLE }, true, true),
        ] {
            let mut agenda = Agenda::default();
            assert_eq!(agenda.take(facts), Some(Round::default()));
            agenda.end(facts.last_sequence, gained, refused);
            assert_eq!(agenda.take(facts), None, "{facts:?}");
            let later = Facts { last_sequence: facts.last_sequence + VAIN_ENTRIES, ..facts };
            assert!(agenda.take(later).is_some(), "{facts:?}");
            // One that found room says that there is some.
            agenda.end(later.last_sequence, true, false);
            assert!(agenda.take(later).is_some(), "{facts:?}");
        }
    }
}
