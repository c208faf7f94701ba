//! Source ports that spread connections over the links of a bond. No I/O.
//!
//! A Linux bond with `xmit_hash_policy=layer3+4` sends each connection over one link, chosen by a hash
//! of addresses and ports. The kernel gives connecting sockets ports in an order that knows nothing of
//! that, so two connections share a link every other time. Here the port is chosen for the hash.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// The link over which a bond of this machine with so many links sends packets of a connection, from 0:
/// the hash of `layer3+4` (Linux, `Documentation/networking/bonding.rst`; since 4.15 with its last bit
/// left out). For two, four and eight links that is also the one over which such a bond of the peer
/// answers.
pub(crate) fn bond_link(from: SocketAddr, to: SocketAddr, links: u8) -> u8 {
    // As the kernel reads the header: in the order of the wire, as a number of this machine.
    let [from_high, from_low] = from.port().to_be_bytes();
    let [to_high, to_low] = to.port().to_be_bytes();
    let mut hash = u32::from_ne_bytes([from_high, from_low, to_high, to_low]);
    hash ^= address_bits(from.ip()) ^ address_bits(to.ip());
    hash ^= hash >> 16;
    hash ^= hash >> 8;
    ((hash >> 1) % u32::from(links.max(1))) as u8
}

/// An address as 32 bits; those of IPv6 are folded (`ipv6_addr_hash`).
fn address_bits(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => u32::from_ne_bytes(address.octets()),
        IpAddr::V6(address) => {
            let octets = address.octets();
            let words = octets.as_chunks::<4>().0.iter();
            words.fold(0, |bits, word| bits ^ u32::from_ne_bytes(*word))
        }
    }
}

/// Ports of this machine's address `from` whose connections to `to` go over the link; from a random
/// one on, so that two processes don't try the same ones.
pub(crate) fn ports_for_link(
    from: IpAddr,
    to: SocketAddr,
    (link, links): (u8, u8),
    ports: RangeInclusive<u16>,
    random: u64,
) -> impl Iterator<Item = u16> {
    let count = ports.len().max(1);
    let first = (random % count as u64) as usize;
    let all = ports.clone().skip(first).chain(ports.take(first));
    all.filter(move |port| bond_link(SocketAddr::new(from, *port), to, links) == link)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the kernel's own function (`bond_ip_hash` of `drivers/net/bonding/bond_main.c` with
    /// `flow_get_u32_src` and `_dst`), compiled as C: the links of 2, 4, 8 and 3.
    const KERNEL: [(&str, u16, &str, u16, [u8; 4]); 10] = [
        ("10.0.0.1", 40_000, "10.0.0.2", 1191, [0, 2, 6, 0]),
        ("10.0.0.1", 40_001, "10.0.0.2", 1191, [0, 2, 6, 2]),
        ("10.0.0.1", 40_002, "10.0.0.2", 1191, [1, 3, 7, 2]),
        ("10.0.0.1", 40_003, "10.0.0.2", 1191, [1, 3, 7, 1]),
        ("192.168.17.200", 32_768, "192.168.17.9", 7100, [1, 3, 3, 2]),
        ("192.168.17.200", 60_999, "192.168.17.9", 7100, [1, 3, 7, 2]),
        ("172.16.254.3", 51_234, "10.99.1.77", 443, [0, 2, 2, 1]),
        ("fd00::1", 40_000, "fd00::2", 1191, [0, 2, 6, 0]),
        ("fd00::1", 40_002, "fd00::2", 1191, [1, 3, 7, 2]),
        (
            "2001:db8:1:2:3:4:5:6",
            33_333,
            "2001:db8::ff00:42:8329",
            7100,
            [0, 0, 0, 1],
        ),
    ];

    #[test]
    fn the_link_is_the_one_that_the_kernel_chooses() {
        for (from, from_port, to, to_port, [of_two, of_four, of_eight, of_three]) in KERNEL {
            let from = SocketAddr::new(from.parse().unwrap(), from_port);
            let to = SocketAddr::new(to.parse().unwrap(), to_port);
            for (links, link) in [(2, of_two), (4, of_four), (8, of_eight)] {
                assert_eq!(bond_link(from, to, links), link, "{from} to {to}");
                assert_eq!(bond_link(to, from, links), link, "the way back");
            }
            // Other counts see all bits of the hash, which depend on the machine's byte order.
            if cfg!(target_endian = "little") {
                assert_eq!(bond_link(from, to, 3), of_three, "{from} to {to}");
            }
            assert_eq!(bond_link(from, to, 1), 0);
        }
    }

    #[test]
    fn each_link_has_its_ports_and_all_of_them_are_found_once() {
        let from: IpAddr = "10.0.0.1".parse().unwrap();
        let to: SocketAddr = "10.0.0.2:1191".parse().unwrap();
        for links in [2, 3, 4] {
            let mut found = Vec::new();
            for link in 0..links {
                let range = 32_768..=60_999;
                let ports = ports_for_link(from, to, (link, links), range, 12_345_678);
                let ports: Vec<u16> = ports.collect();
                assert!(ports.len() > 28_000 / usize::from(links) / 2);
                let of_link =
                    |port: &u16| bond_link(SocketAddr::new(from, *port), to, links) == link;
                assert!(ports.iter().all(of_link));
                found.extend(ports);
            }
            found.sort_unstable();
            assert!(found.into_iter().eq(32_768..=60_999));
        }
    }
}
