//! The few packets of MQTT 3.1.1 that the load needs.

/// CONNECT without keep alive, with a clean session or one that is kept.
pub fn connect(client_id: &str, clean: bool) -> Vec<u8> {
    let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 4, u8::from(clean) << 1, 0, 0];
    text(&mut body, client_id);
    packet(0x10, &body)
}

/// DISCONNECT.
pub const DISCONNECT: [u8; 2] = [0xe0, 0];

/// SUBSCRIBE to one filter.
pub fn subscribe(filter: &str, qos: u8) -> Vec<u8> {
    let mut body = vec![0, 1];
    text(&mut body, filter);
    body.push(qos);
    packet(0x82, &body)
}

/// A PUBLISH of this payload length, whose packet id and payload are to be filled in.
pub fn publish(topic: &str, qos: u8, payload_len: usize) -> Vec<u8> {
    let mut body = Vec::new();
    text(&mut body, topic);
    if qos > 0 {
        body.extend_from_slice(&[0, 0]);
    }
    body.resize(body.len() + payload_len, b'.');
    packet(0x30 | qos << 1, &body)
}

/// PUBACK.
pub fn puback(id: u16) -> [u8; 4] {
    let [high, low] = id.to_be_bytes();
    [0x40, 2, high, low]
}

/// The first packet in `bytes`: its first byte, its body, its length. `None`: not whole yet.
pub fn cut(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (&first, rest) = bytes.split_first()?;
    let mut len = 0;
    for (i, byte) in rest.iter().take(4).enumerate() {
        len |= usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let header = i + 2;
            return bytes.get(header..header + len).map(|body| (first, body, header + len));
        }
    }
    None
}

/// Appends a string with its length.
pub fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// A packet of this first byte.
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut len = body.len();
    while len > 0x7f {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(body);
    out
}
