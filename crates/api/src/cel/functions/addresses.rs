//! IP addresses and networks.

use super::super::value::Value;
use super::{Outcome, failed, flag};
use crate::cidr::Cidr;
use std::net::IpAddr;

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match (function, values) {
        ("isIP", [Value::String(text)]) => flag(address(text).is_some()),
        ("ip", [Value::String(text)]) => match address(text) {
            Some(address) => Some(Ok(Value::Ip(address))),
            None => failed(format!("IP Address '{text}' parse error during conversion from string")),
        },
        ("ip.isCanonical", [Value::String(text)]) => match address(text) {
            Some(address) => flag(address.to_string() == **text),
            None => failed(format!("IP Address '{text}' parse error during conversion from string")),
        },
        ("isCIDR", [Value::String(text)]) => flag(network(text).is_some()),
        ("cidr", [Value::String(text)]) => match network(text) {
            Some((address, length)) => Some(Ok(Value::Cidr(address, length))),
            None => failed(format!("network address parse error during conversion from string: {text}")),
        },
        ("family", [Value::Ip(address)]) => Some(Ok(Value::Int(if address.is_ipv4() { 4 } else { 6 }))),
        ("isUnspecified", [Value::Ip(address)]) => flag(address.is_unspecified()),
        ("isLoopback", [Value::Ip(address)]) => flag(address.is_loopback()),
        ("isLinkLocalMulticast", [Value::Ip(address)]) => flag(is_link_local_multicast(address)),
        ("isLinkLocalUnicast", [Value::Ip(address)]) => flag(is_link_local_unicast(address)),
        ("isGlobalUnicast", [Value::Ip(address)]) => {
            let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
            flag(
                !broadcast
                    && !address.is_unspecified()
                    && !address.is_loopback()
                    && !address.is_multicast()
                    && !is_link_local_unicast(address),
            )
        }
        ("ip", [Value::Cidr(address, _)]) => Some(Ok(Value::Ip(*address))),
        ("prefixLength", [Value::Cidr(_, length)]) => Some(Ok(Value::Int(i64::from(*length)))),
        ("masked", [Value::Cidr(address, length)]) => Some(Ok(Value::Cidr(masked(*address, *length), *length))),
        ("containsIP", [Value::Cidr(network, length), other]) => match other {
            Value::Ip(address) => flag(within(*network, *length, *address)),
            Value::String(text) => match address(text) {
                Some(address) => flag(within(*network, *length, address)),
                None => failed(format!("IP Address '{text}' parse error during conversion from string")),
            },
            _ => None,
        },
        ("containsCIDR", [Value::Cidr(outer, length), other]) => {
            let (inner, inner_length) = match other {
                Value::Cidr(address, length) => (*address, *length),
                Value::String(text) => match network(text) {
                    Some(found) => found,
                    None => {
                        return failed(format!("network address parse error during conversion from string: {text}"));
                    }
                },
                _ => return None,
            };
            flag(inner_length >= *length && within(*outer, *length, inner))
        }
        _ => None,
    }
}

/// Addresses with a zone and IPv4-mapped IPv6 addresses are invalid.
fn address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    match address {
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => None,
        other => Some(other),
    }
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (written, length) = text.split_once('/')?;
    let address = address(written)?;
    let limit = if address.is_ipv4() { 32 } else { 128 };
    let plain = length.bytes().all(|byte| byte.is_ascii_digit()) && !(length.len() > 1 && length.starts_with('0'));
    let length = length.parse::<u8>().ok().filter(|length| plain && *length <= limit)?;
    Some((address, length))
}

fn masked(address: IpAddr, length: u8) -> IpAddr {
    Cidr::new(address, length).map_or(address, |network| network.first())
}

fn within(network: IpAddr, length: u8, address: IpAddr) -> bool {
    Cidr::new(network, length).is_some_and(|network| network.contains(address))
}

fn is_link_local_multicast(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.octets()[..3] == [224, 0, 0],
        IpAddr::V6(six) => six.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local_unicast(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.segments()[0] & 0xffc0 == 0xfe80,
    }
}
