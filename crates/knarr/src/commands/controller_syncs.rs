//! Flags for how many objects each controller syncs at once. They are a table of the controllers, so they are added in a loop.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use knarr_controllers::{ConcurrentSyncs, SYNC_SETTINGS};

#[derive(Clone, Debug, Default)]
pub struct SyncArguments(pub ConcurrentSyncs);

impl Args for SyncArguments {
    fn augment_args(command: Command) -> Command {
        let flags = SYNC_SETTINGS.iter().map(|setting| {
            let what = setting.flag.replace("concurrent-", "").replace("-syncs", "").replace('-', " ");
            Arg::new(setting.flag)
                .long(setting.flag)
                .value_name("NUMBER")
                .value_parser(value_parser!(u32).range(1..))
                .help(format!(
                    "Number of objects of the {what} controller that are synced at once [default: {}]",
                    setting.default
                ))
                .help_heading("Controllers")
        });
        command.args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SyncArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut syncs = SyncArguments::default();
        syncs.update_from_arg_matches(matches)?;
        Ok(syncs)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SYNC_SETTINGS {
            if let Some(number) = matches.get_one::<u32>(setting.flag) {
                self.0.set(setting.flag, *number as usize);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use knarr_component_flags::{Component, flag};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        syncs: SyncArguments,
    }

    #[test]
    fn flags_and_defaults_are_those_of_kubernetes() {
        for setting in SYNC_SETTINGS {
            let known = flag(Component::ControllerManager, setting.flag).unwrap();
            assert_eq!(known.default, setting.default.to_string(), "{}", setting.flag);
        }
        let line = Line::try_parse_from(["knarr", "--concurrent-gc-syncs=7"]).unwrap();
        assert_eq!(line.syncs.0.of("concurrent-gc-syncs"), 7);
        assert_eq!(line.syncs.0.of("concurrent-namespace-syncs"), 10);
        assert!(Line::try_parse_from(["knarr", "--concurrent-gc-syncs=0"]).is_err());
    }
}
