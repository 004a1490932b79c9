-- Sliding log: every admission of the last period, one by one. The twin of
-- core/src/algorithm/sliding_log.rs.
--
-- The state is a list, oldest first, of entries <s> <n> <units> <total>: when,
-- how many, and all units up to and with it since the log began, so the units
-- in the window are a difference of two totals. Two requests of one instant
-- are two entries. The TTL ends when the newest entry leaves.
function kinds.s(key)
  local limit, period_s, period_n = number(), number(), number()
  local at_s, at_n = s, n

  local function entry(index)
    local text = call('LINDEX', key, index)
    if not text then return nil end
    local a, b, c, d = text:match('(%d+) (%d+) (%d+) (%d+)')
    return { s = tonumber(a), n = tonumber(b), units = tonumber(c), total = tonumber(d) }
  end

  -- Nanoseconds until it leaves; not above 0 when it has.
  local function leaves(made_s, made_n)
    return (made_s + period_s - at_s) * 1e9 + (made_n + period_n - at_n)
  end

  local function micros(made_s, made_n)
    return (made_s + period_s - at_s) * 1e6 + ceil(made_n + period_n - at_n, 1000)
  end

  local newest, oldest = entry(-1), nil
  if newest then
    if newest.s > s or newest.s == s and newest.n > n then at_s, at_n = newest.s, newest.n end
    oldest = entry(0)
    if oldest and leaves(oldest.s, oldest.n) <= 0 then
      -- Those that have left, all at once: there may be very many.
      local low, high = 1, call('LLEN', key)
      while low < high do
        local middle = floor((low + high) / 2)
        local found = entry(middle)
        if leaves(found.s, found.n) <= 0 then low = middle + 1 else high = middle end
      end
      call('LTRIM', key, low, -1)
      oldest = entry(0)
    end
    newest = oldest and newest
  end
  local pending = 0
  local top = newest and newest.total or 0
  local base = oldest and oldest.total - oldest.units or 0
  local account = {}

  local function spent() return top + pending - base end

  function account.left()
    local units = limit - spent()
    return units > 0 and units or 0
  end

  function account.fits(units) return units == 0 or spent() + units <= limit end

  function account.charge(units) pending = pending + units end

  -- The oldest units go first: that never admits early.
  function account.back(units, then_s, then_n)
    if leaves(then_s, then_n) <= 0 then return end
    while oldest and units > 0 do
      if oldest.units <= units then
        units = units - oldest.units
        call('LPOP', key)
        oldest = entry(0)
      else
        local text = ('%d %d %d %d'):format(oldest.s, oldest.n, oldest.units - units, oldest.total)
        call('LSET', key, 0, text)
        units = 0
      end
    end
  end

  function account.save()
    if pending > 0 then
      call('RPUSH', key, ('%d %d %d %d'):format(at_s, at_n, pending, top + pending))
      local span = leaves(at_s, at_n) + (at_s - s) * 1e9 + (at_n - n)
      call('PEXPIRE', key, ('%d'):format(milliseconds(span)))
    elseif newest then
      repair(key, milliseconds(leaves(newest.s, newest.n)))
    end
  end

  function account.tell(units, ok)
    local fits, wait, reset = ok or account.fits(units), 0, 0
    if not fits then
      wait = -1
      if units <= limit then
        -- The entry whose leaving makes room.
        local enough = top + pending - (limit - units)
        local low, high = 0, newest and call('LLEN', key) or 0
        if pending > 0 and high > 0 then high = high - 1 end
        while low < high do
          local middle = floor((low + high) / 2)
          if entry(middle).total >= enough then high = middle else low = middle + 1 end
        end
        local found = newest and entry(low)
        wait = found and micros(found.s, found.n) or micros(at_s, at_n)
      end
    end
    if pending > 0 then
      reset = micros(at_s, at_n)
    elseif newest and spent() > 0 then
      reset = micros(newest.s, newest.n)
    end
    return fits, account.left(), wait, reset, 0
  end

  return account
end
