//! Parses a command line as the Go programs do (pflag), from the words to the values of each flag.

use std::collections::BTreeMap;

use crate::table::{self, Flag};
use crate::{Component, go, value};

/// What a command line requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    Run(Given),
    Help,
    /// The text that `--version` prints.
    Version(String),
}

/// The flags that were given, with their values in normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    component: Component,
    values: BTreeMap<&'static str, Vec<String>>,
    /// Settings of Knarr that a configuration file sets and no flag does.
    settings: BTreeMap<&'static str, Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("unknown flag: --{0}")]
    UnknownFlag(String),
    #[error("unknown shorthand flag: {} in -{}", quote_rune(*.0), .1)]
    UnknownShorthand(char, String),
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag needs an argument: --{0}")]
    ValueRequired(String),
    #[error("flag needs an argument: {} in -{}", quote_rune(*.0), .1)]
    ShorthandValueRequired(char, String),
    #[error("invalid argument {} for {} flag: {reason}", go::quote(.value), go::quote(.flag))]
    InvalidValue { flag: String, value: String, reason: String },
    #[error("{} does not take any arguments, got [{}]", go::quote(.0), quoted(.1))]
    Arguments(&'static str, Vec<String>),
    #[error("unknown command {0}")]
    UnknownCommand(String),
}

fn quote_rune(letter: char) -> String {
    format!("'{letter}'")
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| go::quote(word)).collect::<Vec<_>>().join(" ")
}

impl Given {
    /// Nothing given.
    pub fn empty(component: Component) -> Self {
        Given { component, values: BTreeMap::new(), settings: BTreeMap::new() }
    }

    pub fn component(&self) -> Component {
        self.component
    }

    /// The flags that were given, by name.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    pub fn is_given(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The values of a flag if it was given.
    pub fn given(&self, name: &str) -> Option<&[String]> {
        self.values.get(name).map(Vec::as_slice)
    }

    /// The values of a flag, or its default.
    pub fn values(&self, name: &str) -> Vec<String> {
        let default = || table::flag(self.component, name).map(Flag::default_values).unwrap_or_default();
        self.given(name).map_or_else(default, <[String]>::to_vec)
    }

    /// The value of a flag with one value, or its default.
    pub fn value(&self, name: &str) -> String {
        self.values(name).into_iter().next().unwrap_or_default()
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) == "true"
    }

    /// Settings of Knarr that a configuration file sets and no flag does.
    pub fn settings(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        self.settings.iter().map(|(name, values)| (*name, values.as_slice()))
    }

    pub(crate) fn set_setting(&mut self, name: &'static str, values: Vec<String>) {
        self.settings.insert(name, values);
    }

    /// Sets a flag from a configuration file. Feature gates are merged, gate by gate.
    pub(crate) fn configure(&mut self, name: &str, values: &[String], flags_win: bool) -> Result<(), ParseError> {
        let Some(flag) = table::flag(self.component, name) else { return Ok(()) };
        let given = self.values.remove(flag.name);
        if flags_win && flag.name != "feature-gates" && given.is_some() {
            self.values.extend(given.map(|given| (flag.name, given)));
            return Ok(());
        }
        if values.is_empty() {
            self.values.insert(flag.name, Vec::new());
        }
        for value in values {
            self.set(flag, value)?;
        }
        if let (Some(given), "feature-gates") = (given, flag.name) {
            self.values.entry(flag.name).or_default().extend(given);
        }
        Ok(())
    }

    /// Sets a flag from its text; the first text replaces the default, further ones add to lists.
    fn set(&mut self, flag: &'static Flag, text: &str) -> Result<(), ParseError> {
        let read = value::read(self.component, flag, text).map_err(|reason| ParseError::InvalidValue {
            flag: flag
                .shorthand
                .map_or_else(|| format!("--{}", flag.name), |letter| format!("-{letter}, --{}", flag.name)),
            value: text.to_owned(),
            reason,
        })?;
        let values = self.values.entry(flag.name).or_default();
        if !flag.has_many_values() {
            values.clear();
        }
        values.extend(read);
        Ok(())
    }
}

/// Parses the words after the program's name.
pub fn parse(component: Component, words: &[String]) -> Result<CommandLine, ParseError> {
    let mut given = Given::empty(component);
    let mut arguments = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        if word == "--" {
            arguments.extend_from_slice(rest);
            break;
        }
        if word.starts_with("--") {
            rest = long(&mut given, word, rest)?;
        } else if word.len() > 1 && word.starts_with('-') {
            rest = short(&mut given, word, rest)?;
        } else {
            arguments.push(word.clone());
        }
    }
    finish(given, arguments)
}

fn finish(mut given: Given, arguments: Vec<String>) -> Result<CommandLine, ParseError> {
    let component = given.component;
    let is_help = given.is_on("help");
    given.values.remove("help");
    match arguments.first() {
        Some(first) if component == Component::Kubelet => return Err(ParseError::UnknownCommand(first.clone())),
        Some(_) if !is_help => return Err(ParseError::Arguments(component.name(), arguments)),
        _ => {}
    }
    if is_help {
        return Ok(CommandLine::Help);
    }
    let requested = given.value("version");
    given.values.remove("version");
    Ok(match requested.as_str() {
        "false" | "" => CommandLine::Run(given),
        _ => CommandLine::Version(requested),
    })
}

fn long<'w>(given: &mut Given, word: &str, rest: &'w [String]) -> Result<&'w [String], ParseError> {
    let body = &word[2..];
    if body.starts_with(['-', '=']) {
        return Err(ParseError::Syntax(word.to_owned()));
    }
    let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value)));
    let flag = table::flag(given.component, name).ok_or_else(|| ParseError::UnknownFlag(name.to_owned()))?;
    match (value.or(flag.value_if_bare()), rest.split_first()) {
        (Some(value), _) => given.set(flag, value).map(|()| rest),
        (None, Some((value, rest))) => given.set(flag, value).map(|()| rest),
        (None, None) => Err(ParseError::ValueRequired(name.to_owned())),
    }
}

fn short<'w>(given: &mut Given, word: &str, rest: &'w [String]) -> Result<&'w [String], ParseError> {
    let mut letters = &word[1..];
    while let Some(letter) = letters.chars().next() {
        let all = letters;
        letters = &letters[letter.len_utf8()..];
        let mut own = table::flags(given.component).iter();
        let Some(flag) = own.find(|flag| flag.shorthand == Some(letter)) else {
            return Err(ParseError::UnknownShorthand(letter, all.to_owned()));
        };
        if let Some(value) = letters.strip_prefix('=').filter(|value| !value.is_empty()) {
            given.set(flag, value)?;
            return Ok(rest);
        }
        if let Some(value) = flag.value_if_bare() {
            given.set(flag, value)?;
        } else if !letters.is_empty() {
            given.set(flag, letters)?;
            return Ok(rest);
        } else if let Some((value, rest)) = rest.split_first() {
            given.set(flag, value)?;
            return Ok(rest);
        } else {
            return Err(ParseError::ShorthandValueRequired(letter, all.to_owned()));
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(component: Component, text: &str) -> Result<CommandLine, ParseError> {
        parse(component, &text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn values(component: Component, text: &str, name: &str) -> Vec<String> {
        match line(component, text) {
            Ok(CommandLine::Run(given)) => given.values(name),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn values_are_read_as_pflag_reads_them() {
        use Component::{ApiServer, ControllerManager, Kubelet, Proxy};
        for (component, text, name, expected) in [
            (ApiServer, "", "secure-port", &["6443"][..]),
            (ApiServer, "--secure-port 1", "secure-port", &["1"]),
            (ApiServer, "--secure-port=1 --secure-port=2", "secure-port", &["2"]),
            (ApiServer, "--secure_port=0x10", "secure-port", &["16"]),
            (ApiServer, "--allow-privileged", "allow-privileged", &["true"]),
            (ApiServer, "--allow-privileged=F", "allow-privileged", &["false"]),
            // A boolean does not consume the next word.
            (ApiServer, "--allow-privileged --v 3", "v", &["3"]),
            (ApiServer, "-v=4", "v", &["4"]),
            (ApiServer, "-v4", "v", &["4"]),
            (ApiServer, "-v 4", "v", &["4"]),
            (ApiServer, "--etcd-servers=a,b --etcd-servers=c", "etcd-servers", &["a", "b", "c"]),
            (ApiServer, "--etcd-servers=", "etcd-servers", &[]),
            (
                ApiServer,
                "--service-account-issuer=a,b --service-account-issuer=c",
                "service-account-issuer",
                &["a,b", "c"],
            ),
            (ControllerManager, "", "controllers", &["*"]),
            (ControllerManager, "--controllers=*,-nodeipam", "controllers", &["*", "-nodeipam"]),
            (ApiServer, "--runtime-config=api/all=true,apps/v1", "runtime-config", &["api/all=true", "apps/v1="]),
            (ApiServer, "--feature-gates=A=true,kube:B=false", "feature-gates", &[":A=true", "kube:B=false"]),
            (ApiServer, "--allow-metric-labels=a,b=c", "allow-metric-labels", &["a,b=c"]),
            (ApiServer, "--oidc-required-claim=a=b,c=d", "oidc-required-claim", &["a=b,c=d"]),
            (ApiServer, "--service-node-port-range=30000+10", "service-node-port-range", &["30000-30010"]),
            (ApiServer, "--event-ttl=1h30m", "event-ttl", &["1h30m0s"]),
            (Kubelet, "--node-labels=a=b,c", "node-labels", &["a=b", "c="]),
            (
                Kubelet,
                "--eviction-hard=memory.available<1Gi,nodefs.available<5%",
                "eviction-hard",
                &["memory.available<1Gi", "nodefs.available<5%"],
            ),
            (Kubelet, "--feature-gates=A=T", "feature-gates", &["A=true"]),
            (
                Kubelet,
                "--register-with-taints=a=b:NoSchedule,c:NoExecute",
                "register-with-taints",
                &["a=b:NoSchedule", "c:NoExecute"],
            ),
            (
                Kubelet,
                "--reserved-memory=0:memory=1Gi;1:memory=2Gi",
                "reserved-memory",
                &["0:memory=1Gi", "1:memory=2Gi"],
            ),
            (Proxy, "--healthz-bind-address=[::]:1", "healthz-bind-address", &["[::]:1"]),
            (Proxy, "--proxy-mode=nftables", "proxy-mode", &["nftables"]),
        ] {
            assert_eq!(values(component, text, name), expected, "{text}");
        }
    }

    /// The messages are those of the programs of v1.36.
    #[test]
    fn wrong_command_lines_are_refused_with_kubernetes_messages() {
        use Component::{ApiServer, ControllerManager, Kubelet, Proxy};
        for (component, text, message) in [
            (ApiServer, "--foo", "unknown flag: --foo"),
            (ApiServer, "-x", "unknown shorthand flag: 'x' in -x"),
            (ApiServer, "--=x", "bad flag syntax: --=x"),
            (ApiServer, "---x", "bad flag syntax: ---x"),
            (ApiServer, "--secure-port", "flag needs an argument: --secure-port"),
            (ApiServer, "--v", "flag needs an argument: --v"),
            (ApiServer, "-v", "flag needs an argument: 'v' in -v"),
            (ApiServer, "foo", "\"kube-apiserver\" does not take any arguments, got [\"foo\"]"),
            (Proxy, "a -- b", "\"kube-proxy\" does not take any arguments, got [\"a\" \"b\"]"),
            (Kubelet, "foo", "unknown command foo"),
            (
                ApiServer,
                "--secure-port=x",
                "invalid argument \"x\" for \"--secure-port\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
            ),
            (
                ApiServer,
                "--advertise-address=x",
                "invalid argument \"x\" for \"--advertise-address\" flag: failed to parse IP: \"x\"",
            ),
            (
                ApiServer,
                "--allow-privileged=maybe",
                "invalid argument \"maybe\" for \"--allow-privileged\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                ApiServer,
                "--event-ttl=5",
                "invalid argument \"5\" for \"--event-ttl\" flag: time: missing unit in duration \"5\"",
            ),
            (
                ApiServer,
                "--oidc-required-claim=a",
                "invalid argument \"a\" for \"--oidc-required-claim\" flag: malformed pair, expect string=string",
            ),
            (
                ApiServer,
                "--goaway-chance=x",
                "invalid argument \"x\" for \"--goaway-chance\" flag: strconv.ParseFloat: parsing \"x\": invalid syntax",
            ),
            (
                ApiServer,
                "--log-json-info-buffer-size=x",
                "invalid argument \"x\" for \"--log-json-info-buffer-size\" flag: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                ApiServer,
                "--service-node-port-range=x",
                "invalid argument \"x\" for \"--service-node-port-range\" flag: strconv.Atoi: parsing \"x\": invalid syntax",
            ),
            (
                ApiServer,
                "--tls-curve-preferences=x",
                "invalid argument \"x\" for \"--tls-curve-preferences\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
            ),
            (
                ApiServer,
                "--tls-sni-cert-key=x",
                "invalid argument \"x\" for \"--tls-sni-cert-key\" flag: expected comma separated certificate and key file paths",
            ),
            (
                ApiServer,
                "-v=x",
                "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax",
            ),
            (
                ApiServer,
                "-vx",
                "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax",
            ),
            (
                ApiServer,
                "--vmodule=x",
                "invalid argument \"x\" for \"--vmodule\" flag: \"x\" does not have the pattern=N format",
            ),
            (
                ApiServer,
                "--version=x",
                "invalid argument \"x\" for \"--version\" flag: strconv.ParseBool: parsing \"x\": invalid syntax",
            ),
            (
                ApiServer,
                "--kubelet-port=-1",
                "invalid argument \"-1\" for \"--kubelet-port\" flag: strconv.ParseUint: parsing \"-1\": invalid syntax",
            ),
            (
                ApiServer,
                "--allow-metric-labels=x",
                "invalid argument \"x\" for \"--allow-metric-labels\" flag: x must be formatted as key=value",
            ),
            (
                Kubelet,
                "--max-pods=3000000000",
                "invalid argument \"3000000000\" for \"--max-pods\" flag: strconv.ParseInt: parsing \"3000000000\": value out of range",
            ),
            (
                Kubelet,
                "--register-with-taints=foo",
                "invalid argument \"foo\" for \"--register-with-taints\" flag: invalid taint spec: foo",
            ),
            (
                Kubelet,
                "--reserved-memory=x",
                "invalid argument \"x\" for \"--reserved-memory\" flag: the reserved memory has incorrect format, expected numaNodeID:type=quantity[,type=quantity...], got x",
            ),
            (
                Kubelet,
                "--feature-gates=Foo",
                "invalid argument \"Foo\" for \"--feature-gates\" flag: malformed pair, expect string=bool",
            ),
            (
                Kubelet,
                "--eviction-hard=x",
                "invalid argument \"x\" for \"--eviction-hard\" flag: malformed pair, expect string<string",
            ),
            (Kubelet, "--address=x", "invalid argument \"x\" for \"--address\" flag: \"x\" is not a valid IP address"),
            (
                Proxy,
                "--healthz-bind-address=x",
                "invalid argument \"x\" for \"--healthz-bind-address\" flag: \"x\" is not in a valid format (ip or ip:port): address x: missing port in address",
            ),
            (
                ControllerManager,
                "--node-eviction-rate=x",
                "invalid argument \"x\" for \"--node-eviction-rate\" flag: strconv.ParseFloat: parsing \"x\": invalid syntax",
            ),
        ] {
            assert_eq!(line(component, text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn help_and_version_are_requests_of_their_own() {
        for component in Component::ALL {
            assert_eq!(line(component, "--help"), Ok(CommandLine::Help));
            assert_eq!(line(component, "-h --v=2"), Ok(CommandLine::Help));
            assert_eq!(line(component, "--version"), Ok(CommandLine::Version("true".to_owned())));
            assert_eq!(line(component, "--version=raw"), Ok(CommandLine::Version("raw".to_owned())));
            assert!(matches!(line(component, "--version=false"), Ok(CommandLine::Run(_))));
        }
    }

    /// Every default is a value that the flag accepts.
    #[test]
    fn defaults_can_be_given() {
        for component in Component::ALL {
            for flag in table::flags(component) {
                let words = [format!("--{}={}", flag.name, flag.default)];
                let read = parse(component, &words);
                let is_empty_value = flag.default.is_empty();
                assert!(read.is_ok() || is_empty_value, "{} {words:?}: {read:?}", component.name());
            }
        }
    }
}
