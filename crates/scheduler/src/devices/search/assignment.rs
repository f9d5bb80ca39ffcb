//! Gives devices to requests, and takes them back: what is in use, shared, counted and constrained in a search.

use super::{Candidate, Given, Position, Search};
use crate::devices::allocator::AllocationError;
use crate::devices::capacity;
use crate::devices::counters::Counters;
use crate::devices::request;

impl<'a> Search<'a> {
    /// Gives a device to the request, if it can be used. With `must`, a violated constraint is an error.
    pub(super) fn give(&mut self, at: Position, candidate: usize, must: bool) -> Result<bool, AllocationError> {
        if !self.is_free(at, candidate) {
            return Ok(false);
        }
        let by = self.candidates[candidate];
        let (device, is_shareable) = (by.device(), by.is_shareable());
        if !self.request(at).tolerates(by.api()) || !self.fits(at, candidate) {
            return Ok(false);
        }
        // The first share of a device has consumed its counters.
        let is_shared =
            is_shareable && (self.in_use.consumed(&device.id).is_some() || self.shared.contains_key(&candidate));
        let has_counters = !is_shared && !device.consumes.is_empty();
        if has_counters && !self.counters_of(by.pool).reserve(device) {
            return Ok(false);
        }
        if !self.satisfies_constraints(at, &by) {
            if has_counters {
                self.counters_of(by.pool).release(device);
            }
            if must {
                let claim = request::key(self.claims[at.claim].object);
                let (request, id) = (self.request(at).own_name(), &device.id);
                return Err(AllocationError::Fatal(format!(
                    "claim {claim}, request {request}: cannot add device {id} because a claim constraint would not be satisfied"
                )));
            }
            return Ok(false);
        }
        let consumed = is_shareable.then(|| capacity::consumption(&self.request(at).capacity, device));
        match &consumed {
            None => self.taken.entry(candidate).or_default().push(at.claim),
            Some(amounts) => {
                let (shares, total) = self.shared.entry(candidate).or_default();
                *shares += 1;
                for (name, amount) in amounts {
                    total.entry(name.clone()).or_default().add(amount);
                }
            }
        }
        let (request, alternative) = (at.request, at.alternative.unwrap_or(0));
        self.given[at.claim].push(Given { candidate, request, alternative, consumed, has_counters });
        Ok(true)
    }

    /// Takes back what the claim got last.
    pub(super) fn take_back(&mut self, at: Position) {
        let Some(given) = self.given[at.claim].pop() else { return };
        let candidate = given.candidate;
        match &given.consumed {
            None => {
                if let Some(claims) = self.taken.get_mut(&candidate) {
                    claims.pop();
                }
            }
            Some(amounts) => {
                if let Some((shares, total)) = self.shared.get_mut(&candidate) {
                    *shares -= 1;
                    for (name, amount) in amounts {
                        if let Some(total) = total.get_mut(name) {
                            total.subtract(amount);
                        }
                    }
                    if *shares == 0 {
                        self.shared.remove(&candidate);
                    }
                }
            }
        }
        let (name, subrequest) = (self.request(at).name, self.request(at).subrequest);
        self.claims[at.claim].constraints.iter_mut().for_each(|constraint| constraint.remove(name, subrequest));
        if given.has_counters {
            let by = self.candidates[candidate];
            self.counters_of(by.pool).release(by.device());
        }
    }

    fn satisfies_constraints(&mut self, at: Position, by: &Candidate<'a>) -> bool {
        let (name, subrequest) = (self.request(at).name, self.request(at).subrequest);
        let constraints = &mut self.claims[at.claim].constraints;
        let driver = &by.device().id.pool.driver;
        let violated =
            (0..constraints.len()).find(|index| !constraints[*index].add(name, subrequest, driver, by.api()));
        if let Some(index) = violated {
            constraints[..index].iter_mut().for_each(|constraint| constraint.remove(name, subrequest));
        }
        violated.is_none()
    }

    fn counters_of(&mut self, pool: usize) -> &mut Counters {
        let (pools, in_use) = (self.pools, self.in_use);
        self.counters.entry(pool).or_insert_with(|| Counters::of(&pools[pool], in_use))
    }
}
