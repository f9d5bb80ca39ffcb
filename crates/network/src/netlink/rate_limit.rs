//! Limits of an interface's rate, through netlink.

use futures::StreamExt;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

use super::{Netlink, NetlinkError, failed};

impl Netlink {
    /// Limits the egress rate of an interface, by a token bucket.
    pub async fn limit_rate(&self, index: u32, bytes_a_second: u64, burst: u32) -> Result<(), NetlinkError> {
        let mut message = TcMessage::default();
        message.header.index = i32::try_from(index).unwrap_or(i32::MAX);
        message.header.parent = TcHandle::ROOT;
        message.header.handle = TcHandle { major: 1, minor: 0 };
        message.attributes.push(TcAttribute::Kind("tbf".to_owned()));
        message.attributes.push(TcAttribute::Options(token_bucket(bytes_a_second, burst)));
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let mut handle = self.handle.clone();
        let step = "limiting bandwidth";
        let mut replies = handle.request(request).map_err(failed(step))?;
        while let Some(reply) = replies.next().await {
            if let NetlinkPayload::Error(error) = reply.payload
                && error.code.is_some()
            {
                return Err(failed(step)(rtnetlink::Error::NetlinkError(error)));
            }
        }
        Ok(())
    }
}

/// The kernel's parameters of a token bucket filter.
fn token_bucket(bytes_a_second: u64, burst: u32) -> Vec<TcOption> {
    const PARAMETERS: u16 = 1;
    const RATE_64: u16 = 4;
    const BURST: u16 = 6;
    const ETHERNET: u8 = 1;
    // Maximum time a packet is queued before it is dropped.
    const LATENCY_MILLISECONDS: u64 = 50;
    let waiting = bytes_a_second.saturating_mul(LATENCY_MILLISECONDS) / 1000 + u64::from(burst);
    let rate = u32::try_from(bytes_a_second).unwrap_or(u32::MAX);
    let mut parameters = Vec::with_capacity(36);
    parameters.extend([0, ETHERNET, 0, 0, 0, 0, 0, 0]);
    parameters.extend(rate.to_ne_bytes());
    parameters.extend([0; 12]);
    parameters.extend(u32::try_from(waiting).unwrap_or(u32::MAX).to_ne_bytes());
    parameters.extend([0; 8]);
    let mut options = vec![TcOption::Other(DefaultNla::new(PARAMETERS, parameters))];
    if bytes_a_second > u64::from(u32::MAX) {
        options.push(TcOption::Other(DefaultNla::new(RATE_64, bytes_a_second.to_ne_bytes().to_vec())));
    }
    options.push(TcOption::Other(DefaultNla::new(BURST, burst.to_ne_bytes().to_vec())));
    options
}
