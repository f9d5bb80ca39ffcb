//! Divides the seats of the server among priority levels: nominal limits by shares, and current limits by demand.

/// The configured limits of a level, in seats.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SeatLimits {
    pub nominal: u32,
    /// Without what it may lend.
    pub min: u32,
    /// With what it may borrow.
    pub max: u32,
}

/// The shares of a level, as its object says.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    pub nominal: u32,
    pub lendable_percent: u32,
    /// `None`: it may borrow everything.
    pub borrowing_limit_percent: Option<u32>,
}

impl SeatLimits {
    /// The limits of a level with these shares, of `sum` in all, on a server with `total` seats.
    pub fn new(shares: Shares, sum: u32, total: u32) -> SeatLimits {
        let nominal = match sum {
            0 => 0,
            sum => (f64::from(total) * f64::from(shares.nominal) / f64::from(sum)).ceil() as u32,
        };
        let percent = |percent: u32| (f64::from(nominal) * f64::from(percent) / 100.0).round() as u32;
        let lendable = percent(shares.lendable_percent);
        let borrowable = shares.borrowing_limit_percent.map_or(total, percent);
        SeatLimits { nominal, min: nominal.saturating_sub(lendable), max: nominal.saturating_add(borrowable) }
    }

    /// The limit before any demand was seen.
    pub fn initial(&self) -> u32 {
        self.nominal - (self.nominal - self.min) / 2
    }
}

/// What decides the current limit of a level.
#[derive(Debug, Clone, Copy)]
pub struct LevelDemand {
    pub exempt: bool,
    pub limits: SeatLimits,
    pub high_watermark: u32,
    pub smoothed: f64,
    /// The limit until now.
    pub current: u32,
}

impl LevelDemand {
    /// A level with shares always has a seat: with none, its requests would never start.
    fn at_least_one(&self, seats: u32) -> u32 {
        if self.exempt { seats } else { seats.max(self.limits.nominal.min(1)) }
    }

    /// What the level keeps whatever others need: what it used, up to its nominal limit.
    fn guaranteed(&self) -> u32 {
        if self.exempt {
            self.limits.min.max(self.high_watermark)
        } else {
            self.limits.min.max(self.limits.nominal.min(self.high_watermark))
        }
    }
}

/// The current limits of levels, in their order.
pub fn current_limits(levels: &[LevelDemand]) -> Vec<u32> {
    let limits = levels.iter().zip(by_demand(levels));
    limits.map(|(level, seats)| level.at_least_one(seats)).collect()
}

fn by_demand(levels: &[LevelDemand]) -> Vec<u32> {
    let total: u32 = levels.iter().map(|level| level.limits.nominal).sum();
    let exempt: u32 = levels.iter().filter(|level| level.exempt).map(LevelDemand::guaranteed).sum();
    let remaining = total.saturating_sub(exempt);
    let limited = || levels.iter().filter(|level| !level.exempt);
    let min_sum: u32 = limited().map(|level| level.limits.min).sum();
    let guaranteed_sum: u32 = limited().map(LevelDemand::guaranteed).sum();
    if remaining <= min_sum {
        return levels.iter().map(|level| if level.exempt { level.guaranteed() } else { level.limits.min }).collect();
    }
    if remaining <= guaranteed_sum {
        let share = f64::from(remaining - min_sum) / f64::from(guaranteed_sum - min_sum);
        let scaled = |level: &LevelDemand| {
            level.limits.min + (f64::from(level.guaranteed() - level.limits.min) * share).round() as u32
        };
        return levels.iter().map(|level| if level.exempt { level.guaranteed() } else { scaled(level) }).collect();
    }
    let items: Vec<Item> = limited()
        .map(|level| {
            let lower = f64::from(level.guaranteed());
            Item { target: lower.max(level.smoothed), lower, upper: f64::from(level.limits.max) }
        })
        .collect();
    let shared = allocate(f64::from(total), &items);
    let mut shared = shared.into_iter().flatten();
    levels
        .iter()
        .map(|level| {
            if level.exempt {
                level.guaranteed()
            } else {
                shared.next().map_or(level.current, |seats| seats.round() as u32)
            }
        })
        .collect()
}

/// One part of an allocation.
#[derive(Debug, Clone, Copy)]
struct Item {
    target: f64,
    lower: f64,
    upper: f64,
}

/// Below this a target counts as this much, so that ratios stay finite.
const MIN_TARGET: f64 = 0.001;

/// Divides `sum` so that each part is the same multiple of its target, except where a bound forbids it. `None` if the
/// bounds allow no solution.
fn allocate(sum: f64, items: &[Item]) -> Option<Vec<f64>> {
    const EPSILON: f64 = 1e-7;
    let given = |multiple: f64| -> f64 { items.iter().map(|item| part(item, multiple)).sum() };
    let lower: f64 = items.iter().map(|item| item.lower).sum();
    let upper: f64 = items.iter().map(|item| item.upper).sum();
    if lower - sum > EPSILON || sum - upper > EPSILON {
        return None;
    }
    // The sum grows linearly between the multiples at which a part meets a bound.
    let mut bends: Vec<f64> = items
        .iter()
        .flat_map(|item| [item.lower / item.target.max(MIN_TARGET), item.upper / item.target.max(MIN_TARGET)])
        .collect();
    bends.sort_by(f64::total_cmp);
    let mut before = 0.0;
    for bend in bends {
        let (low, high) = (given(before), given(bend));
        if high + EPSILON >= sum {
            let multiple = if high - low > EPSILON {
                before + (bend - before) * ((sum - low) / (high - low)).clamp(0.0, 1.0)
            } else {
                bend
            };
            return Some(items.iter().map(|item| part(item, multiple)).collect());
        }
        before = bend;
    }
    Some(items.iter().map(|item| item.upper).collect())
}

fn part(item: &Item, multiple: f64) -> f64 {
    (item.target.max(MIN_TARGET) * multiple).min(item.upper).max(item.lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The built-in levels: system, node-high, leader-election, workload-high, workload-low, global-default, catch-all.
    const BUILT_IN: [(u32, u32); 7] = [(30, 33), (40, 25), (10, 0), (40, 50), (100, 90), (20, 50), (5, 0)];

    fn built_in() -> Vec<LevelDemand> {
        let sum = BUILT_IN.iter().map(|(shares, _)| shares).sum();
        let exempt = LevelDemand {
            exempt: true,
            limits: SeatLimits { max: 600, ..SeatLimits::default() },
            high_watermark: 0,
            smoothed: 0.0,
            current: 0,
        };
        let limited = BUILT_IN.iter().map(|(nominal, lendable_percent)| {
            let shares =
                Shares { nominal: *nominal, lendable_percent: *lendable_percent, borrowing_limit_percent: None };
            let limits = SeatLimits::new(shares, sum, 600);
            LevelDemand { exempt: false, limits, current: limits.initial(), ..exempt }
        });
        std::iter::once(exempt).chain(limited).collect()
    }

    #[test]
    fn nominal_limits_follow_the_shares() {
        let nominal: Vec<u32> = built_in().iter().map(|level| level.limits.nominal).collect();
        assert_eq!(nominal, [0, 74, 98, 25, 98, 245, 49, 13]);
        let low = built_in()[5].limits;
        assert_eq!((low.min, low.max, low.initial()), (24, 845, 135));
        assert_eq!(SeatLimits::new(Shares::default(), 0, 600).nominal, 0);
        let bounded = Shares { nominal: 20, lendable_percent: 0, borrowing_limit_percent: Some(50) };
        assert_eq!(SeatLimits::new(bounded, 100, 100), SeatLimits { nominal: 20, min: 20, max: 30 });
    }

    #[test]
    fn a_busy_level_borrows_what_others_do_not_need() {
        let mut levels = built_in();
        let global_default = &mut levels[6];
        global_default.high_watermark = 400;
        global_default.smoothed = 400.0;
        let limits = current_limits(&levels);
        let total: u32 = levels.iter().map(|level| level.limits.nominal).sum();
        assert!(limits[6] > 200, "{limits:?}");
        assert!(limits.iter().sum::<u32>().abs_diff(total) <= levels.len() as u32, "{limits:?}");
        for (limit, level) in limits.iter().zip(&levels).skip(1) {
            assert!(*limit >= level.limits.min && *limit <= level.limits.max, "{limits:?}");
        }
    }

    #[test]
    fn a_level_that_uses_its_seats_lends_none() {
        let mut levels = built_in();
        for level in &mut levels[1..] {
            level.high_watermark = 1000;
            level.smoothed = 1000.0;
        }
        let limits = current_limits(&levels);
        let nominal: Vec<u32> = levels.iter().map(|level| level.limits.nominal).collect();
        assert_eq!(limits[1..], nominal[1..]);
    }

    #[test]
    fn a_level_with_shares_has_a_seat_on_the_smallest_server() {
        let mut levels = built_in();
        for level in &mut levels[1..] {
            level.limits = SeatLimits { nominal: 1, min: 0, max: 6 };
        }
        levels[1].high_watermark = 1;
        levels[7].limits = SeatLimits::default();
        assert_eq!(current_limits(&levels)[1..], [6, 1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn exempt_demand_shrinks_the_others_down_to_their_minimum() {
        let mut levels = built_in();
        for level in &mut levels {
            level.high_watermark = 500;
        }
        let limits = current_limits(&levels);
        assert_eq!(limits[0], 500);
        let min: Vec<u32> = levels.iter().map(|level| level.limits.min).collect();
        assert_eq!(limits[1..], min[1..]);
    }

    #[test]
    fn parts_are_proportional_within_their_bounds() {
        let item = |target, lower, upper| Item { target, lower, upper };
        for (sum, items, expected) in [
            (30.0, vec![item(1.0, 0.0, 100.0), item(2.0, 0.0, 100.0)], Some(vec![10.0, 20.0])),
            (30.0, vec![item(1.0, 0.0, 5.0), item(1.0, 0.0, 100.0)], Some(vec![5.0, 25.0])),
            (
                23.0,
                vec![item(10.0, 10.0, 100.0), item(1.0, 0.0, 1.0), item(1.0, 0.0, 100.0)],
                Some(vec![20.0, 1.0, 2.0]),
            ),
            (10.0, vec![item(10.0, 10.0, 100.0), item(5.0, 5.0, 10.0)], None),
            (99.0, vec![item(1.0, 0.0, 10.0)], None),
        ] {
            let found = allocate(sum, &items);
            assert_eq!(found.is_some(), expected.is_some(), "{items:?}");
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert!((found - expected).abs() < 1e-6, "{items:?}: {found} instead of {expected}");
            }
        }
    }
}
