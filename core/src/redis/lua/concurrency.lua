-- Concurrency: units in flight, given back by their holder or by expiry. The
-- twin of core/src/algorithm/concurrency.rs.
--
-- The state is a sorted set: the hold <id>:<units> under the microsecond at
-- which it expires, and `units` under the sum of all, less than 0 so that it
-- stands before them. The TTL ends with the last hold.
function kinds.c(key, id)
  local limit, period_s, period_n = number(), number(), number()
  local now = s * 1000000 + floor(n / 1000)
  local period = period_s * 1000000 + ceil(period_n, 1000)
  local sum = -(tonumber(call('ZSCORE', key, 'units') or 0))
  local pending, is_changed = 0, false

  local function units_of(hold) return tonumber(hold:match(':(%d+)$')) end

  if sum > 0 then
    for _, hold in ipairs(call('ZRANGEBYSCORE', key, 0, ('%d'):format(now))) do
      call('ZREM', key, hold)
      sum, is_changed = sum - units_of(hold), true
    end
  end
  local account = { is_leaky = true } -- a hold is no lease

  function account.left()
    local units = limit - sum - pending
    return units > 0 and units or 0
  end

  function account.fits(units) return units == 0 or sum + pending + units <= limit end

  function account.charge(units) pending = pending + units end

  local function release(hold, units)
    local expiry, have = call('ZSCORE', key, hold), units_of(hold)
    call('ZREM', key, hold)
    if units > have then units = have end
    if have > units then call('ZADD', key, expiry, ('%s:%d'):format(id, have - units)) end
    sum, is_changed = sum - units, true
  end

  function account.back(units)
    if sum <= 0 or units <= 0 then return end
    local whole = ('%s:%d'):format(id, units)
    if call('ZSCORE', key, whole) then return release(whole, units) end
    for _, hold in ipairs(call('ZRANGEBYSCORE', key, 0, '+inf')) do
      if hold:sub(1, #id + 1) == id .. ':' then return release(hold, units) end
    end
  end

  -- Microseconds until the last hold expires.
  local function last()
    if pending > 0 then return period end
    local hold = sum > 0 and call('ZRANGE', key, -1, -1, 'WITHSCORES')
    return hold and hold[2] - now or 0
  end

  function account.save()
    if pending > 0 then
      local is_new = call('ZADD', key, ('%d'):format(now + period), ('%s:%d'):format(id, pending))
      sum, pending, is_changed = sum + is_new * pending, 0, true
    end
    if is_changed and sum <= 0 then
      call('DEL', key)
    elseif is_changed then
      call('ZADD', key, ('%d'):format(-sum), 'units')
      call('PEXPIRE', key, ('%d'):format(milliseconds(last() * 1000)))
    elseif sum > 0 then
      repair(key, milliseconds(last() * 1000))
    end
  end

  function account.tell(units, ok)
    local fits, wait = ok or account.fits(units), 0
    if not fits then
      wait = -1
      if units <= limit then
        -- So many must go, in the order in which they expire.
        local need, from = sum - (limit - units), 0
        while need > 0 do
          local holds = call('ZRANGEBYSCORE', key, 0, '+inf', 'WITHSCORES', 'LIMIT', from, 50)
          if #holds == 0 then break end
          for i = 1, #holds, 2 do
            need, wait = need - units_of(holds[i]), holds[i + 1] - now
            if need <= 0 then break end
          end
          from = from + 50
        end
        if wait < 1 then wait = 1 end
      end
    end
    return fits, account.left(), wait, last(), 0
  end

  return account
end
