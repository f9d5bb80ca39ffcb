//! The search for devices with backtracking: for each request in turn, each device in turn.
//!
//! The first complete assignment counts, so the order of pools, slices and devices is the order of preference. A claim
//! decides how deep the search gets: choices are kept in a list, not on the stack of the thread.

mod assignment;
mod candidate;

pub use candidate::Candidate;

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1 as api;

use super::allocator::AllocationError;
use super::capacity;
use super::counters::Counters;
use super::in_use::InUse;
use super::pool::Pool;
use super::request::{Claim, Count, MAX_DEVICES, Request};
use super::selectors::Selectors;
use super::slice::{Amounts, device_is_for};

/// How many devices are tried between two looks at the clock.
const STEPS_PER_CHECK: usize = 32;

/// A device that was given to a request.
pub struct Given {
    pub candidate: usize,
    /// Which request of the claim, and which of its alternatives.
    pub request: usize,
    pub alternative: usize,
    pub consumed: Option<Amounts>,
    has_counters: bool,
}

/// Where the search is: the next device of this request is to be found.
#[derive(Clone, Copy, Default)]
struct Position {
    claim: usize,
    request: usize,
    alternative: Option<usize>,
    device: usize,
    /// Devices before this one were tried for the same request.
    start: usize,
}

/// A choice that can be revised.
enum Choice {
    /// All requests of a claim have their devices.
    ClaimDone,
    Alternative {
        at: Position,
        next: usize,
        /// All tried alternatives would have needed too many devices.
        all_exceed: bool,
    },
    Device {
        at: Position,
        candidate: usize,
        /// Candidates that did not lead to a result; one of each kind.
        failed: Vec<usize>,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Failure {
    NoDevice,
    /// The claim would get more devices than a claim can have.
    TooMany,
}

enum Step {
    Forward(Position),
    Back(Failure),
    Found,
}

pub struct Search<'a> {
    pub node: &'a Node,
    pub claims: Vec<Claim<'a>>,
    pub pools: &'a [Pool],
    pub candidates: Vec<Candidate<'a>>,
    pub in_use: &'a InUse,
    pub selectors: &'a Selectors,
    pub stop: &'a dyn Fn() -> bool,
    /// What each claim gets.
    pub given: Vec<Vec<Given>>,
    counters: HashMap<usize, Counters>,
    /// Which claims get a candidate in this search.
    taken: HashMap<usize, Vec<usize>>,
    /// Shares of candidates in this search, with what they consume.
    shared: HashMap<usize, (usize, Amounts)>,
    matches: HashMap<(usize, usize, usize, usize), bool>,
    steps: usize,
}

impl<'a> Search<'a> {
    pub fn new(
        node: &'a Node,
        claims: Vec<Claim<'a>>,
        pools: &'a [Pool],
        (in_use, selectors): (&'a InUse, &'a Selectors),
        stop: &'a dyn Fn() -> bool,
    ) -> Self {
        let mut candidates = Vec::new();
        for (pool, slices) in pools.iter().enumerate().map(|(index, pool)| (index, &pool.slices)) {
            for slice in slices {
                candidates.extend((0..slice.devices.len()).map(|index| Candidate::new(pool, slice, index)));
            }
        }
        Search {
            node,
            given: claims.iter().map(|_| Vec::new()).collect(),
            claims,
            pools,
            candidates,
            in_use,
            selectors,
            stop,
            counters: HashMap::new(),
            taken: HashMap::new(),
            shared: HashMap::new(),
            matches: HashMap::new(),
            steps: 0,
        }
    }

    /// Whether all claims got their devices, which are then in `given`.
    pub fn run(&mut self) -> Result<bool, AllocationError> {
        let mut choices = Vec::new();
        let mut step = Step::Forward(Position::default());
        loop {
            step = match step {
                Step::Found => return Ok(true),
                Step::Forward(at) => self.forward(at, &mut choices)?,
                Step::Back(failure) => match choices.pop() {
                    Some(choice) => self.revise(choice, failure, &mut choices)?,
                    None => return Ok(false),
                },
            };
        }
    }

    fn forward(&mut self, at: Position, choices: &mut Vec<Choice>) -> Result<Step, AllocationError> {
        self.count_step()?;
        let Some(claim) = self.claims.get(at.claim) else { return Ok(Step::Found) };
        let Some(alternatives) = claim.requests.get(at.request) else {
            choices.push(Choice::ClaimDone);
            return Ok(Step::Forward(Position { claim: at.claim + 1, ..Position::default() }));
        };
        let Some(alternative) = at.alternative else {
            if alternatives[0].subrequest.is_some() {
                choices.push(Choice::Alternative { at, next: 1, all_exceed: true });
            }
            return Ok(Step::Forward(Position { alternative: Some(0), ..at }));
        };
        let request = &alternatives[alternative];
        let number = request.count.number();
        if matches!(&request.count, Count::All(devices) if devices.is_empty()) {
            return Ok(Step::Back(Failure::NoDevice));
        }
        if at.device >= number {
            let next = Position { claim: at.claim, request: at.request + 1, ..Position::default() };
            return Ok(Step::Forward(next));
        }
        if self.given[at.claim].len() + (number - at.device) > MAX_DEVICES {
            return Ok(Step::Back(Failure::TooMany));
        }
        self.choose(at, at.start, Vec::new(), choices)
    }

    /// Gives the request its next device: the first that can be used, from a candidate on.
    fn choose(
        &mut self,
        at: Position,
        from: usize,
        failed: Vec<usize>,
        choices: &mut Vec<Choice>,
    ) -> Result<Step, AllocationError> {
        let alternative = at.alternative.unwrap_or(0);
        if let Count::All(devices) = &self.claims[at.claim].requests[at.request][alternative].count {
            let candidate = devices[at.device];
            if !self.give(at, candidate, true)? {
                return Ok(Step::Back(Failure::NoDevice));
            }
            choices.push(Choice::Device { at, candidate, failed });
            return Ok(Step::Forward(Position { device: at.device + 1, ..at }));
        }
        for candidate in from..self.candidates.len() {
            self.count_step()?;
            let like = |other: &usize| self.candidates[*other].is_like(&self.candidates[candidate]);
            if failed.iter().any(like) || !self.is_free(at, candidate) {
                continue;
            }
            if !self.is_selected(at.claim, at.request, alternative, candidate)? || !self.fits(at, candidate) {
                continue;
            }
            if self.give(at, candidate, false)? {
                choices.push(Choice::Device { at, candidate, failed });
                return Ok(Step::Forward(Position { device: at.device + 1, start: candidate + 1, ..at }));
            }
        }
        Ok(Step::Back(Failure::NoDevice))
    }

    fn revise(&mut self, choice: Choice, failure: Failure, choices: &mut Vec<Choice>) -> Result<Step, AllocationError> {
        match choice {
            // With other devices for earlier claims, this one may get a smaller alternative.
            Choice::ClaimDone => Ok(Step::Back(Failure::NoDevice)),
            Choice::Alternative { at, next, all_exceed } => {
                let all_exceed = all_exceed && failure == Failure::TooMany;
                if next >= self.claims[at.claim].requests[at.request].len() {
                    return Ok(Step::Back(if all_exceed { Failure::TooMany } else { Failure::NoDevice }));
                }
                choices.push(Choice::Alternative { at, next: next + 1, all_exceed });
                Ok(Step::Forward(Position { alternative: Some(next), ..at }))
            }
            Choice::Device { at, candidate, mut failed } => {
                self.take_back(at);
                let request = &self.claims[at.claim].requests[at.request][at.alternative.unwrap_or(0)];
                if failure == Failure::TooMany || matches!(request.count, Count::All(_)) {
                    return Ok(Step::Back(failure));
                }
                failed.push(candidate);
                self.choose(at, candidate + 1, failed, choices)
            }
        }
    }

    fn count_step(&mut self) -> Result<(), AllocationError> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHECK) && (self.stop)() {
            return Err(AllocationError::TimedOut);
        }
        Ok(())
    }

    fn request(&self, at: Position) -> &Request<'a> {
        &self.claims[at.claim].requests[at.request][at.alternative.unwrap_or(0)]
    }

    fn is_free(&self, at: Position, candidate: usize) -> bool {
        let taken = self.taken.get(&candidate);
        if self.request(at).is_admin {
            return !taken.is_some_and(|claims| claims.contains(&at.claim));
        }
        taken.is_none_or(Vec::is_empty) && !self.in_use.is_whole(&self.candidates[candidate].device().id)
    }

    /// Whether the device has the capacity that is requested.
    pub fn has_capacity(&self, request: &Request<'_>, candidate: usize) -> bool {
        let device = self.candidates[candidate].device();
        let shared = self.shared.get(&candidate).map(|(_, amounts)| amounts);
        capacity::fits(&request.capacity, device, [self.in_use.consumed(&device.id), shared])
    }

    fn fits(&self, at: Position, candidate: usize) -> bool {
        self.has_capacity(self.request(at), candidate)
    }

    /// Whether the class' and the request's selectors match, and the device is for the node.
    pub fn is_selected(
        &mut self,
        claim: usize,
        request: usize,
        alternative: usize,
        candidate: usize,
    ) -> Result<bool, AllocationError> {
        let key = (claim, request, alternative, candidate);
        if let Some(known) = self.matches.get(&key) {
            return Ok(*known);
        }
        if (self.stop)() {
            return Err(AllocationError::TimedOut);
        }
        let asked = &self.claims[claim].requests[request][alternative];
        let by = &self.candidates[candidate];
        let class = asked.class.metadata.name.as_deref().unwrap_or_default();
        let of_class = asked.class.spec.selectors.as_deref().unwrap_or_default();
        let source = || format!("claim {}", super::request::key(self.claims[claim].object));
        let selected = self.match_selectors(of_class, by, || format!("class {class}"))?
            && self.match_selectors(asked.selectors, by, source)?
            && (!by.slice.selects_per_device() || device_is_for(by.api(), self.node));
        self.matches.insert(key, selected);
        Ok(selected)
    }

    fn match_selectors(
        &self,
        selectors: &[api::DeviceSelector],
        candidate: &Candidate<'_>,
        source: impl Fn() -> String,
    ) -> Result<bool, AllocationError> {
        for (index, selector) in selectors.iter().enumerate() {
            let expression = selector.cel.as_ref().map_or("", |cel| cel.expression.as_str());
            let compiled = self.selectors.get(expression);
            let program = compiled.as_ref().as_ref().map_err(|error| {
                AllocationError::Fatal(format!("{}: selector #{index}: CEL compile error: {error}", source()))
            })?;
            let value = super::selectors::device_value(&candidate.device().id.pool.driver, candidate.api());
            let matches = value.and_then(|value| program.matches(value).map_err(|error| error.to_string()));
            match matches {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    let text = format!("{}: selector #{index}: CEL runtime error: {error}", source());
                    return Err(AllocationError::Fatal(text));
                }
            }
        }
        Ok(true)
    }
}
