//! Addresses and ports of Services: given out once, taken back when a Service goes.

use knarr_api::status::Status;
use serde_json::Value;

use crate::persist::Call;

/// Gives out cluster addresses and node ports.
#[derive(Default)]
pub struct Services;

/// What a write was given; it goes back unless the write says that it was stored.
pub struct Reservation;

impl Reservation {
    pub fn keep(self) {}
}

impl Services {
    pub async fn begin_create(
        &self,
        _call: &Call<'_>,
        _object: &mut Value,
        _dry_run: bool,
    ) -> Result<Reservation, Status> {
        Ok(Reservation)
    }

    pub async fn begin_update(
        &self,
        _call: &Call<'_>,
        _object: &mut Value,
        _old: &Value,
        _dry_run: bool,
    ) -> Result<Reservation, Status> {
        Ok(Reservation)
    }

    pub async fn after_delete(&self, _call: &Call<'_>, _old: &Value) {}
}

/// The first address of a range, which is that of the API server's own Service.
pub fn first_address(range: &str) -> Option<std::net::IpAddr> {
    let (address, _) = range.split_once('/')?;
    match address.parse().ok()? {
        std::net::IpAddr::V4(address) => Some(std::net::Ipv4Addr::from(u32::from(address) + 1).into()),
        std::net::IpAddr::V6(address) => Some(std::net::Ipv6Addr::from(u128::from(address) + 1).into()),
    }
}
