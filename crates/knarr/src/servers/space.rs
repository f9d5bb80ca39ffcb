//! Space in the databases of etcd: which member is defragmented when, and which alarms about a lack of space can be cleared.
//!
//! A member does not respond while it is defragmented, so only one at a time may be, and the leader comes last. A lock in etcd
//! cannot ensure that, because a full etcd accepts no writes. Instead, each server computes from the state of all members whose
//! turn it is, and defragments its own member only if it still is its turn after a delay. If another server came to a different
//! result, its member has been started on meanwhile and does not respond, which ends the turn.

use std::time::{Duration, Instant};

use knarr_store::{EtcdMember, MemberStatus};

use super::member::QUOTA_BYTES;

/// The minimum size of a database to defragment: for smaller ones the interruption is not worthwhile.
const MIN_DEFRAGMENT_BYTES: u64 = 128 << 20;
/// The interval between defragmentations of a member that is not full.
const DEFRAGMENT_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The interval between defragmentations of a member that is full.
const FULL_INTERVAL: Duration = Duration::from_secs(60);
/// How long it must be a member's turn. Longer than the time between reading the state of the others and starting.
const TURN_DELAY: Duration = Duration::from_secs(4);

/// When this member was defragmented last, and since when it is its turn.
pub struct Defragmentation {
    last: Instant,
    last_when_full: Option<Instant>,
    turn: Option<Instant>,
}

impl Defragmentation {
    pub fn new(now: Instant) -> Self {
        Self { last: now, last_when_full: None, turn: None }
    }

    /// Whether this member needs defragmentation now, so that the state of the others must be read.
    pub fn is_due(&mut self, own: &MemberStatus, now: Instant) -> bool {
        let is_due = match is_full(own) {
            true => self.last_when_full.is_none_or(|last| now.duration_since(last) >= FULL_INTERVAL),
            false => now.duration_since(self.last) >= DEFRAGMENT_INTERVAL,
        };
        let is_due = is_due && needs_defragmentation(own);
        if !is_due {
            self.turn = None;
        }
        is_due
    }

    /// Whether to start now, if it is this member's turn.
    pub fn is_confirmed(&mut self, is_turn: bool, now: Instant) -> bool {
        let since = is_turn.then(|| self.turn.unwrap_or(now));
        self.turn = since;
        since.is_some_and(|since| now.duration_since(since) >= TURN_DELAY)
    }

    /// Records an attempt, whether it succeeded or not.
    pub fn attempted(&mut self, own: &MemberStatus, now: Instant) {
        self.turn = None;
        self.last = now;
        if is_full(own) {
            self.last_when_full = Some(now);
        }
    }
}

/// Whether etcd refuses writes because a member, this or another, is full.
pub fn is_full(status: &MemberStatus) -> bool {
    status.errors.iter().any(|error| error.contains("NOSPACE"))
}

/// Whether a database of this size is far enough below its limit to allow writes again.
pub fn is_below_limit(size: u64) -> bool {
    size < QUOTA_BYTES / 10 * 9
}

/// Whether more than half of a large database is free space, or a full one can be made small enough.
fn needs_defragmentation(status: &MemberStatus) -> bool {
    let is_fragmented = status.size >= MIN_DEFRAGMENT_BYTES && status.size_in_use < status.size / 2;
    let has_room = is_full(status) && !is_below_limit(status.size) && is_below_limit(status.size_in_use);
    is_fragmented || has_room
}

/// Whether it is the turn of a member. `others` are the other voting members; `None` for one that does not respond.
pub fn is_turn(own: &MemberStatus, others: &[Option<MemberStatus>]) -> bool {
    let Some(others) = others.iter().map(Option::as_ref).collect::<Option<Vec<&MemberStatus>>>() else { return false };
    let agree = own.leader != 0 && others.iter().all(|other| other.leader == own.leader);
    let rank = |status: &MemberStatus| (status.id == status.leader, status.id);
    let is_first = others.iter().filter(|other| needs_defragmentation(other)).all(|other| rank(own) < rank(other));
    agree && needs_defragmentation(own) && is_first
}

/// The alarms about space that this member clears: its own, if it has room again, and those of members that were removed.
pub fn finished_alarms(alarms: &[u64], members: &[EtcdMember], own: &MemberStatus) -> Vec<u64> {
    let is_over = |id: u64| match id == own.id {
        true => is_below_limit(own.size),
        false => members.iter().all(|member| member.id != id),
    };
    alarms.iter().copied().filter(|id| is_over(*id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn status(id: u64, size: u64, size_in_use: u64) -> MemberStatus {
        MemberStatus {
            id,
            version: String::new(),
            leader: 1,
            raft_index: 1,
            applied_index: 1,
            size,
            size_in_use,
            is_learner: false,
            errors: vec![],
        }
    }

    fn full(status: MemberStatus) -> MemberStatus {
        MemberStatus { errors: vec!["memberID:1 alarm:NOSPACE ".to_owned()], ..status }
    }

    #[test]
    fn only_large_databases_with_much_free_space_are_defragmented() {
        let (quota, half) = (QUOTA_BYTES, QUOTA_BYTES / 2);
        for (status, expected) in [
            (status(1, MIN_DEFRAGMENT_BYTES - 1, 0), false),
            (status(1, MIN_DEFRAGMENT_BYTES, MIN_DEFRAGMENT_BYTES / 2), false),
            (status(1, MIN_DEFRAGMENT_BYTES, MIN_DEFRAGMENT_BYTES / 2 - 1), true),
            (status(1, quota, half + 1), false),
            (full(status(1, quota, half + 1)), true),
            (full(status(1, quota, quota - 1)), false),
            (full(status(1, half, half)), false),
        ] {
            assert_eq!(needs_defragmentation(&status), expected, "{status:?}");
        }
    }

    #[test]
    fn members_take_turns_and_the_leader_is_last() {
        let (fragmented, small) = (|id| Some(status(id, 400 * MIB, 10 * MIB)), |id| Some(status(id, 10 * MIB, MIB)));
        let follows_another = |id| fragmented(id).map(|status| MemberStatus { leader: 3, ..status });
        let own = |id| fragmented(id).unwrap();
        for (own, others, expected) in [
            (own(2), vec![fragmented(1), fragmented(3)], true),
            (own(3), vec![fragmented(1), fragmented(2)], false),
            (own(1), vec![fragmented(2), fragmented(3)], false),
            (own(3), vec![fragmented(1), small(2)], true),
            (own(1), vec![small(2), fragmented(3)], false),
            (own(1), vec![small(2), small(3)], true),
            (own(1), vec![], true),
            (small(2).unwrap(), vec![small(1), small(3)], false),
            // One does not respond: perhaps it defragments.
            (own(2), vec![fragmented(1), None], false),
            // An election is going on.
            (own(2), vec![fragmented(1), follows_another(3)], false),
            (MemberStatus { leader: 0, ..own(2) }, vec![], false),
        ] {
            assert_eq!(is_turn(&own, &others), expected, "{own:?} {others:?}");
        }
    }

    #[test]
    fn a_turn_is_confirmed_after_a_while_without_interruption() {
        let start = Instant::now();
        let mut state = Defragmentation::new(start);
        let own = status(1, 400 * MIB, 10 * MIB);
        assert!(!state.is_due(&own, start));
        let now = start + DEFRAGMENT_INTERVAL;
        assert!(state.is_due(&own, now));
        assert!(!state.is_confirmed(true, now), "the others have not seen it yet");
        assert!(!state.is_confirmed(false, now + TURN_DELAY));
        assert!(!state.is_confirmed(true, now + TURN_DELAY), "it was not its turn meanwhile");
        assert!(state.is_confirmed(true, now + TURN_DELAY * 2));
        state.attempted(&own, now + TURN_DELAY * 2);
        assert!(!state.is_due(&own, now + TURN_DELAY * 3));
    }

    #[test]
    fn a_full_member_need_not_wait_for_an_hour() {
        let start = Instant::now();
        let mut state = Defragmentation::new(start);
        let own = full(status(1, QUOTA_BYTES, QUOTA_BYTES / 3));
        assert!(state.is_due(&own, start));
        state.attempted(&own, start);
        assert!(!state.is_due(&own, start) && state.is_due(&own, start + FULL_INTERVAL));
    }

    #[test]
    fn alarms_of_removed_members_and_of_members_with_room_are_over() {
        let member =
            |id| EtcdMember { id, name: id.to_string(), peer_urls: vec![], client_urls: vec![], is_learner: false };
        let members = [member(1), member(2)];
        let with_room = full(status(1, 10 * MIB, MIB));
        assert_eq!(finished_alarms(&[1, 2, 3], &members, &with_room), [1, 3]);
        let without = full(status(1, QUOTA_BYTES, QUOTA_BYTES));
        assert_eq!(finished_alarms(&[1, 2, 3], &members, &without), [3]);
    }
}
