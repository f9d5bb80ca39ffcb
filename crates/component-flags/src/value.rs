//! What each type of flag accepts, with the messages of pflag and of Kubernetes' own types.

use std::net::IpAddr;

use knarr_go_duration as go_duration;
use knarr_semantics::quantity::Quantity;

use crate::table::Flag;
use crate::{Component, go};

/// Reads the text of a flag into its values in normal form: `true`, `10`, or one entry per element of a list.
pub fn read(component: Component, flag: &Flag, text: &str) -> Result<Vec<String>, String> {
    let one = |value: String| vec![value];
    Ok(match flag.type_name {
        "bool" => one(go::parse_bool(text)?.to_string()),
        "int" => one(go::parse_int(text, 64)?.to_string()),
        "int32" => one(go::parse_int(text, 32)?.to_string()),
        "uint" => one(go::parse_uint(text, 0, 64)?.to_string()),
        "float" => go::parse_float(text, 64).map(|_| one(text.to_owned()))?,
        "float32" => go::parse_float(text, 32).map(|_| one(text.to_owned()))?,
        "duration" => one(go_duration::format(go_duration::parse(text)?)),
        "Level" => one(go::parse_uint(text, 10, 31)?.to_string()),
        "strings" if text.is_empty() => Vec::new(),
        "strings" => go::parse_csv(text)?,
        "stringArray" => one(text.to_owned()),
        "stringToString" => pairs_of_csv(text)?,
        "int32Slice" => numbers(text)?,
        "mapStringString" => pairs(flag.name, text)?,
        "mapStringBool" => switches(text)?,
        "colonSeparatedMultimapStringString" => multimap(flag.name, text)?,
        "ip" => one(address(component, text)?),
        "ipport" => one(address_and_port(text)?),
        "quantity" => one(quantity(text)?),
        "portRange" => one(ports(text)?),
        "namedCertKey" => one(certificate(text)?),
        "[]v1.Taint" => taints(text)?,
        "reserved-memory" => reserved_memory(text)?,
        "pattern=N,..." => patterns(text)?,
        "version" => one(version(text)?),
        // Names that are checked with everything else.
        _ => one(text.to_owned()),
    })
}

/// pflag's map of texts: one pair, or pairs as comma-separated values.
fn pairs_of_csv(text: &str) -> Result<Vec<String>, String> {
    let wrong = |pair: &str| format!("{pair} must be formatted as key=value");
    let pairs = match text.matches('=').count() {
        0 => return Err(wrong(text)),
        1 => vec![text.trim_matches('"').to_owned()],
        _ => go::parse_csv(text)?,
    };
    match pairs.iter().find(|pair| !pair.contains('=')) {
        Some(pair) => Err(wrong(pair)),
        None => Ok(pairs),
    }
}

fn numbers(text: &str) -> Result<Vec<String>, String> {
    text.split(',').map(|part| go::parse_int(part.trim(), 32).map(|number| number.to_string())).collect()
}

/// Maps of flags that Kubernetes reads differently although their type has the same name.
const MAPS_WITHOUT_VALUES: [&str; 2] = ["runtime-config", "node-labels"];
const MAPS_OF_THRESHOLDS: [&str; 2] = ["eviction-hard", "eviction-soft"];
const SINGLE_PAIRS: [&str; 1] = ["oidc-required-claim"];

fn pairs(name: &str, text: &str) -> Result<Vec<String>, String> {
    let sign = if MAPS_OF_THRESHOLDS.contains(&name) { '<' } else { '=' };
    let trim = |(key, value): (&str, &str)| format!("{}{sign}{}", key.trim(), value.trim());
    let pair = |part: &str| match part.split_once(sign) {
        Some(split) => Ok(trim(split)),
        None if MAPS_WITHOUT_VALUES.contains(&name) => Ok(trim((part, ""))),
        None => Err(format!("malformed pair, expect string{sign}string")),
    };
    if SINGLE_PAIRS.contains(&name) {
        return Ok(vec![pair(text)?]);
    }
    text.split(',').filter(|part| !part.is_empty()).map(pair).collect()
}

fn switches(text: &str) -> Result<Vec<String>, String> {
    let switch = |part: &str| {
        let (key, value) = part.split_once('=').ok_or("malformed pair, expect string=bool")?;
        let (key, value) = (key.trim(), value.trim());
        let on = go::parse_bool(value).map_err(|error| format!("invalid value of {key}: {value}, err: {error}"))?;
        Ok(format!("{key}={on}"))
    };
    text.split(',').filter(|part| !part.is_empty()).map(switch).collect()
}

fn multimap(name: &str, text: &str) -> Result<Vec<String>, String> {
    let entry = |part: &str| match part.split_once(':') {
        Some((key, value)) => Ok(format!("{}:{}", key.trim(), value.trim())),
        None if name == "feature-gates" => Ok(format!(":{}", part.trim())),
        None => Err("malformed pair, expect string:string".to_owned()),
    };
    text.split(',').filter(|part| !part.is_empty()).map(entry).collect()
}

/// The components of the node have a type of their own for addresses.
fn address(component: Component, text: &str) -> Result<String, String> {
    let trimmed = text.trim();
    match trimmed.parse::<IpAddr>() {
        Ok(_) => Ok(trimmed.to_owned()),
        Err(_) if trimmed.is_empty() => Ok(String::new()),
        Err(_) if matches!(component, Component::Kubelet | Component::Proxy) => {
            Err(format!("{} is not a valid IP address", go::quote(text)))
        }
        Err(_) => Err(format!("failed to parse IP: {}", go::quote(text))),
    }
}

fn address_and_port(text: &str) -> Result<String, String> {
    if text.is_empty() || text.parse::<IpAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let form = |reason: &str| {
        format!("{} is not in a valid format (ip or ip:port): address {text}: {reason}", go::quote(text))
    };
    let Some((host, port)) = text.rsplit_once(':') else { return Err(form("missing port in address")) };
    let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
        Some(Some(inner)) => inner,
        Some(None) => return Err(form("missing ']' in address")),
        None if host.contains(':') => return Err(form("too many colons in address")),
        None => host,
    };
    if host.parse::<IpAddr>().is_err() {
        return Err(format!("{} is not a valid IP address", go::quote(host)));
    }
    match port.parse::<u16>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("{} is not a valid number", go::quote(port))),
    }
}

fn quantity(text: &str) -> Result<String, String> {
    Quantity::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn ports(text: &str) -> Result<String, String> {
    let text = text.trim();
    let number = |part: &str| go::parse_atoi(part);
    let wrong = |message: &str| Err(message.to_owned());
    let (low, high) = match (text.split_once('-'), text.split_once('+')) {
        _ if text.is_empty() => return Ok("0-0".to_owned()),
        (Some(_), Some(_)) => return wrong(&format!("unable to parse port range: {text}")),
        (Some((low, high)), None) => (number(low)?, number(high)?),
        (None, Some((base, size))) => {
            let base = number(base)?;
            (base, base.saturating_add(number(size)?))
        }
        (None, None) => (number(text)?, number(text)?),
    };
    if low > 65535 || high > 65535 {
        return wrong(&format!("the port range cannot be greater than 65535: {text}"));
    }
    if high < low {
        return wrong(&format!("end port cannot be less than start port: {text}"));
    }
    Ok(format!("{low}-{high}"))
}

fn certificate(text: &str) -> Result<String, String> {
    let files = text.split(':').next().unwrap_or_default();
    if files.split(',').count() != 2 {
        return Err("expected comma separated certificate and key file paths".to_owned());
    }
    Ok(text.to_owned())
}

fn taints(text: &str) -> Result<Vec<String>, String> {
    let mut seen: Vec<(String, String)> = Vec::new();
    let specs: Vec<&str> = text.split(',').filter(|spec| !spec.is_empty()).collect();
    for spec in &specs {
        let invalid = || format!("invalid taint spec: {spec}");
        let (pair, effect) = spec.split_once(':').ok_or_else(invalid)?;
        if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            return Err(if effect.contains(':') {
                invalid()
            } else {
                format!("invalid taint effect: {effect}, unsupported taint effect")
            });
        }
        if pair.matches('=').count() > 1 || pair.split('=').next().is_none_or(str::is_empty) {
            return Err(invalid());
        }
        let taint = (pair.split('=').next().unwrap_or_default().to_owned(), effect.to_owned());
        if seen.contains(&taint) {
            return Err(format!("duplicated taints with the same key and effect: {spec}"));
        }
        seen.push(taint);
    }
    Ok(specs.into_iter().map(str::to_owned).collect())
}

fn reserved_memory(text: &str) -> Result<Vec<String>, String> {
    let mut values = Vec::new();
    for reservation in text.split(';').filter(|part| !part.is_empty()) {
        let [node, limits] = reservation.split(':').collect::<Vec<_>>()[..] else {
            return Err(format!(
                "the reserved memory has incorrect format, expected numaNodeID:type=quantity[,type=quantity...], got \
                 {reservation}"
            ));
        };
        go::parse_atoi(node)
            .map_err(|_| format!("failed to convert the NUMA node ID, expected integer, got {node}"))?;
        for limit in limits.split(',') {
            let [kind, amount] = limit.split('=').collect::<Vec<_>>()[..] else {
                return Err(format!("the reserved limit has incorrect value, expected type=quantity, got {limit}"));
            };
            if kind != "memory" && !kind.starts_with("hugepages-") {
                return Err(format!("memory type conversion error, unknown type: {}", go::quote(kind)));
            }
            quantity(amount).map_err(|_| format!("failed to parse the quantity: {amount}"))?;
        }
        values.push(reservation.to_owned());
    }
    Ok(values)
}

fn patterns(text: &str) -> Result<Vec<String>, String> {
    let pattern = |part: &str| {
        let [name, level] = part.split('=').collect::<Vec<_>>()[..] else {
            return Err(format!("{} does not have the pattern=N format", go::quote(part)));
        };
        if name.is_empty() || level.is_empty() {
            return Err(format!("{} does not have the pattern=N format", go::quote(part)));
        }
        go::parse_uint(level, 10, 31).map_err(|error| format!("parsing verbosity in {}: {error}", go::quote(part)))?;
        Ok(part.to_owned())
    };
    text.split(',').filter(|part| !part.is_empty()).map(pattern).collect()
}

fn version(text: &str) -> Result<String, String> {
    match text {
        "raw" => Ok("raw".to_owned()),
        _ if text.starts_with('v') => Ok(text.to_owned()),
        _ => go::parse_bool(text).map(|value| value.to_string()),
    }
}
