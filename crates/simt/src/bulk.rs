//! Bulk and tensor copies, and asynchronous stores: checks their operands, and divides them into contiguous pieces.

use crate::access::By;
use crate::agent::Role;
use crate::device::{Reduce, Scope};
use crate::fault::FaultKind;
use crate::flight::{Order, Piece};
use crate::machine::{At, Machine, Space};
use crate::mbarrier::Id;
use crate::shadow::{Mode, OF_ELEMENTS};
use crate::tensor::TensorMap;

/// Length and addresses of bulk copies are multiples of this.
const ALIGN: u64 = 16;

/// Where a load goes: an address of shared memory, and the mbarrier that it signals.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    pub address: u32,
    pub mbarrier: u32,
    /// Mask of destination blocks in the cluster; `None`: the block that the addresses are in.
    pub multicast: Option<u16>,
}

impl Machine {
    /// From global memory to shared memory of one block or several.
    pub fn bulk_load(
        &mut self,
        to: Destination,
        src: u64,
        bytes: u32,
        location: At,
    ) -> Result<(), FaultKind> {
        check_bulk(&[src, to.address.into()], bytes)?;
        let pieces = |dst| vec![Piece { src: Some(src), dst, len: bytes as usize }];
        self.load_to(to, (Space::Global, bytes), pieces, location)
    }

    /// From the own block's shared memory to another block's.
    pub fn bulk_copy_to_peer(
        &mut self,
        to: Destination,
        src: u32,
        bytes: u32,
        location: At,
    ) -> Result<(), FaultKind> {
        check_bulk(&[src.into(), to.address.into()], bytes)?;
        let pieces = |dst| vec![Piece { src: Some(src.into()), dst, len: bytes as usize }];
        self.load_to(to, (Space::Shared, bytes), pieces, location)
    }

    /// From registers to shared memory of a block.
    pub fn store_async(
        &mut self,
        to: Destination,
        words: &[u32],
        location: At,
    ) -> Result<(), FaultKind> {
        let values: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let len = values.len();
        if !to.address.is_multiple_of(len as u32) {
            return Err(FaultKind::Invalid(format!(
                "a store to the address {:#x}: expected a multiple of its {len} bytes",
                to.address
            )));
        }
        for (place, dst, id) in self.destinations(to, location)? {
            let agent = Some(self.bytes_agent(id));
            let by = By { agent, mode: Mode::Copy, location };
            let (pieces, dst) = (vec![Piece { src: None, dst, len }], (place, Space::Shared));
            let order = Order {
                src: Space::Shared,
                dst,
                pieces,
                values: Some(values.clone()),
                reduce: None,
            };
            self.start_flight(order, (by, by), Some((id, len as u32)))?;
        }
        Ok(())
    }

    /// From a tensor to shared memory of one block or several.
    pub fn tensor_load(
        &mut self,
        to: Destination,
        map: &[u8; TensorMap::BYTES],
        coords: &[i32],
        location: At,
    ) -> Result<(), FaultKind> {
        let map = TensorMap::decode(map).map_err(FaultKind::Invalid)?;
        map.check(coords, u64::from(to.address)).map_err(FaultKind::Invalid)?;
        let pieces = |dst| map.load(coords, dst);
        self.load_to(to, (Space::Global, map.box_bytes()), pieces, location)
    }

    fn load_to(
        &mut self,
        to: Destination,
        (src, bytes): (Space, u32),
        pieces: impl Fn(u64) -> Vec<Piece>,
        location: At,
    ) -> Result<(), FaultKind> {
        for (place, dst, id) in self.destinations(to, location)? {
            let agent = Some(self.bytes_agent(id));
            let by = By { agent, mode: Mode::Proxy, location };
            let (dst, pieces) = ((place, Space::Shared), pieces(dst));
            let order = Order { src, dst, pieces, values: None, reduce: None };
            self.start_flight(order, (by, by), Some((id, bytes)))?;
        }
        Ok(())
    }

    /// The blocks that a load goes to, and the addresses and the mbarrier there.
    fn destinations(
        &mut self,
        to: Destination,
        location: At,
    ) -> Result<Vec<(usize, u64, Id)>, FaultKind> {
        let Destination { address, mbarrier, multicast } = to;
        let by = By { agent: None, mode: Mode::Proxy, location };
        let Some(mask) = multicast else {
            let (place, local) = self.locate(Space::Cluster, address.into())?;
            let id = self.mbarrier_for(Space::Cluster, mbarrier, by)?;
            if id.0 != place {
                let why = "a copy to one block signals an mbarrier of another block";
                return Err(FaultKind::Invalid(why.to_owned()));
            }
            return Ok(vec![(place, local, id)]);
        };
        let ranks = (0..u16::BITS).filter(|rank| mask >> rank & 1 == 1);
        ranks
            .map(|rank| {
                let (address, mbarrier) =
                    (self.map_shared(address, rank)?, self.map_shared(mbarrier, rank)?);
                let (place, local) = self.locate(Space::Cluster, address.into())?;
                Ok((place, local, self.mbarrier_for(Space::Cluster, mbarrier, by)?))
            })
            .collect()
    }

    /// From shared to global memory, in the open bulk group.
    pub fn bulk_store(
        &mut self,
        dst: u64,
        src: u32,
        bytes: u32,
        location: At,
    ) -> Result<(), FaultKind> {
        check_bulk(&[dst, src.into()], bytes)?;
        let pieces = vec![Piece { src: Some(src.into()), dst, len: bytes as usize }];
        self.store_from(pieces, None, location)
    }

    /// From shared memory to a tensor, in the open bulk group.
    pub fn tensor_store(
        &mut self,
        map: &[u8; TensorMap::BYTES],
        coords: &[i32],
        src: u32,
        reduce: Option<Reduce>,
        location: At,
    ) -> Result<(), FaultKind> {
        let map = TensorMap::decode(map).map_err(FaultKind::Invalid)?;
        let tensor = self.memory.regions.describe(map.address);
        map.check(coords, src.into())
            .and_then(|()| map.check_store(coords))
            .map_err(|why| FaultKind::Invalid(format!("{why}; of the tensor at {tensor}")))?;
        let pieces = map.store(coords, src.into());
        self.store_from(pieces, reduce.map(|reduce| (reduce, map.element)), location)
    }

    fn store_from(
        &mut self,
        pieces: Vec<Piece>,
        reduce: Option<(Reduce, crate::tensor::Element)>,
        location: At,
    ) -> Result<(), FaultKind> {
        let reader = self.bulk_agent(Role::BulkReads, Mode::Proxy, location);
        // Concurrent reductions to the same bytes are no race.
        let reduces = Mode::Atomic { scope: Scope::Gpu, bytes: OF_ELEMENTS };
        let mode = if reduce.is_some() { reduces } else { Mode::Proxy };
        let writer = self.bulk_agent(Role::BulkWrites, mode, location);
        let (place, thread) = self.current;
        let dst = (place, Space::Global);
        let order = Order { src: Space::Shared, dst, pieces, values: None, reduce };
        let number = self.start_flight(order, (reader, writer), None)?;
        self.blocks[place].threads[thread].bulk.push(number);
        Ok(())
    }
}

fn check_bulk(addresses: &[u64], bytes: u32) -> Result<(), FaultKind> {
    for (what, value) in addresses
        .iter()
        .map(|&address| ("address", address))
        .chain([("number of bytes", u64::from(bytes))])
    {
        if !value.is_multiple_of(ALIGN) {
            return Err(FaultKind::Invalid(format!(
                "a bulk copy with the {what} {value:#x}: expected a multiple of {ALIGN}"
            )));
        }
    }
    Ok(())
}
