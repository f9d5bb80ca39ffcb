//! Shuffle sharding: each flow hashes to a small hand of queues, so that two flows rarely share all of theirs.

use sha2::{Digest, Sha256};

/// The largest hand that a priority level may have.
pub const MAX_HAND: usize = 15;

/// A hash of a flow: the requests of one FlowSchema with the same distinguisher.
pub fn hash_flow(schema: &str, distinguisher: &str) -> u64 {
    let sum = Sha256::new().chain_update(schema).chain_update([0]).chain_update(distinguisher).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&sum[..8]);
    u64::from_le_bytes(first)
}

/// The queues of a flow: `size` different numbers below `queues`. Returns how many were dealt.
pub fn deal(hash: u64, queues: usize, size: usize, hand: &mut [usize; MAX_HAND]) -> usize {
    let size = size.clamp(1, MAX_HAND).min(queues);
    let mut rest = hash;
    let mut remainders = [0; MAX_HAND];
    for (at, remainder) in remainders.iter_mut().enumerate().take(size) {
        let remaining = (queues - at) as u64;
        *remainder = (rest % remaining) as usize;
        rest /= remaining;
    }
    for at in 0..size {
        // The remainder counts only queues that earlier cards left: skip those that were dealt already.
        let mut card = remainders[at];
        for earlier in (0..at).rev() {
            if card >= remainders[earlier] {
                card += 1;
            }
        }
        hand[at] = card;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_have_different_queues_and_depend_on_the_flow() {
        let mut seen = std::collections::HashSet::new();
        for flow in 0..200 {
            let mut hand = [0; MAX_HAND];
            let size = deal(hash_flow("schema", &format!("user-{flow}")), 64, 6, &mut hand);
            let mut dealt = hand[..size].to_vec();
            dealt.sort_unstable();
            dealt.dedup();
            assert_eq!(dealt.len(), 6, "{hand:?}");
            assert!(dealt.iter().all(|queue| *queue < 64));
            seen.insert(dealt);
        }
        assert!(seen.len() > 195, "{} hands", seen.len());
    }

    #[test]
    fn a_hand_is_never_larger_than_the_deck() {
        let mut hand = [0; MAX_HAND];
        assert_eq!(deal(u64::MAX, 1, 6, &mut hand), 1);
        assert_eq!(hand[0], 0);
        assert_eq!(deal(12_345, 3, 8, &mut hand), 3);
    }
}
