-- Token bucket and leaky bucket, at any rate and in any request. The twin of
-- core/src/algorithm/token_bucket.rs and leaky_bucket.rs.
--
-- Spans are counted in a unit, 1 ns (1 us where a full bucket takes more than
-- 13 days), and a part below `tick` of it; a token takes `whole` units and
-- `part` parts, so nothing is ever rounded.
--
-- Two forms of state:
--
--   base + count * 300e9 + tat % 300e9
--     of a rate with a token of whole microseconds that divide 210 days:
--     2^a 3^b 5^c 7^d, and base = (1 + ((d * 10 + c) * 5 + b) * 15 + a) * 6e12
--     tells which, exactly. tat is the instant in microseconds at which the
--     bucket is full. It is told only modulo 300e9 us (83 hours), as the TTL
--     ends it before that is ambiguous: such a bucket fills in 26 hours.
--     count is how many tokens were taken since the bucket was last full; 12
--     to 19 mean any number. A clock that steps back to before that instant
--     stands still there.
--   b <s> <n> <debt> <part> <tick> <whole> <part of a token> <unit>
--     of any rate: the latest instant at which something was charged, the
--     debt then, and the rate it is counted at.
--
-- A state of another rate is carried over token for token.
local MOST = 2 ^ 53 - 1

local function times(count, tick, whole, part)
  local units, parts = count * whole, 0
  if part > 0 then
    local high = floor(count / 65536) * part
    local low = high % tick * 65536 + count % 65536 * part
    units = units + floor(high / tick) * 65536 + floor(low / tick)
    parts = low % tick
  end
  if units > MOST then return MOST, 0 end -- owed without bound: denies for as long as can be told
  return units, parts
end

local function above(units, parts, others, other_parts)
  return units > others or units == others and parts > other_parts
end

-- Whole tokens in so many units and parts.
local function tokens(units, parts, tick, whole, part)
  local count = floor((units + parts / tick) / (whole + part / tick))
  if count > 2 ^ 33 then return 2 ^ 33 end
  -- The quotient was rounded: it may be one off.
  local w, p = times(count, tick, whole, part)
  if above(w, p, units, parts) then return count - 1 end
  w, p = times(count + 1, tick, whole, part)
  return above(w, p, units, parts) and count or count + 1
end

local function bucket(key, is_leaky)
  local unit, tick, whole, part = number(), number(), number(), number()
  local burst, full, full_part, base, ttl = number(), number(), number(), number(), number()
  local state = call('GET', key)
  local units, parts, at_s, at_n = 0, 0, s, n
  local is_changed, is_carried = false, false
  local old_unit, old_tick, old_whole, old_part = unit, tick, whole, part
  local old = words(state, 'b')
  if old then
    local elapsed = (s - old[1]) * (1e9 / old[8]) + floor((n - old[2]) / old[8])
    if elapsed < 0 then elapsed, at_s, at_n = 0, old[1], old[2] end
    old_tick, old_whole, old_part, old_unit = old[5], old[6], old[7], old[8]
    units, parts = old[3] - elapsed, old[4]
  elseif state and #state < 17 and tonumber(state) then
    local code = floor(state / 6e12) - 1
    local tat = state % 6e12 % 300e9
    local count = floor(state % 6e12 / 300e9)
    old_unit, old_tick, old_whole, old_part = 1, 1, 1000, 0
    for _, power in ipairs({ { 2, 15 }, { 3, 5 }, { 5, 10 }, { 7, 2 } }) do
      for _ = 1, code % power[2] do old_whole = old_whole * power[1] end
      code = floor(code / power[2])
    end
    units = tat - s % 300000 * 1000000 - floor(n / 1000)
    if units < -197e9 then units = units + 300e9 elseif units > 103e9 then units = units - 300e9 end
    units = units * 1000 - n % 1000
    local held = count * old_whole
    if count < 12 and units > held then
      at_s = at_s + floor((at_n + units - held) / 1e9)
      at_n = (at_n + units - held) % 1e9
      units = held
    end
    -- Longer than the key would live: it is from long ago.
    local left = call('PTTL', key)
    if left >= 0 and units > left * 1e6 + 1e9 then units = 0 end
  end
  if units < 0 then units, parts = 0, 0 end
  if old_unit ~= unit or old_tick ~= tick or old_whole ~= whole or old_part ~= part then
    is_carried = units > 0 or parts > 0
    local count = tokens(units, parts, old_tick, old_whole, old_part)
    local w, p = times(count, old_tick, old_whole, old_part)
    local rest = (units - w + (parts - p) / old_tick) / (old_whole + old_part / old_tick)
    units, parts = times(count, tick, whole, part)
    if rest > 0 then -- of a token that is not whole: rounded up
      local more = ceil(rest * (whole + part / tick) * (1 + 2 ^ -50), 1)
      if more > whole then
        units, parts = times(count + 1, tick, whole, part)
      else
        units = units + more
      end
    end
  end
  local before, before_parts

  local function sum(count)
    local w, p = times(count, tick, whole, part)
    w, p = units + w, parts + p
    if p >= tick then w, p = w + 1, p - tick end
    if w > MOST then return MOST, 0 end
    return w, p
  end

  local function whole_tokens()
    if above(units, parts, full, full_part) then return 0 end
    local w, p = full - units, full_part - parts
    if p < 0 then w, p = w - 1, p + tick end
    local count = tokens(w, p, tick, whole, part)
    return count < burst and count or burst
  end

  -- Rounded up.
  local function micros(w, p)
    if p > 0 then w = w + 1 end
    return unit == 1 and ceil(w, 1000) or w
  end

  local function nanos(w, p)
    return w * unit + ceil(p * unit, tick)
  end

  local account = { left = whole_tokens, is_leaky = is_leaky }

  function account.fits(count)
    if count == 0 then return true end
    if count > burst then return false end
    local w, p = sum(count)
    return not above(w, p, full, full_part)
  end

  function account.charge(count)
    before, before_parts = units, parts
    units, parts = sum(count)
    is_changed = true
  end

  function account.back(count, then_s, then_n)
    local elapsed = (at_s - then_s) * (1e9 / unit) + floor((at_n - then_n) / unit)
    if elapsed < 0 then elapsed = 0 end
    local w, p = times(count, tick, whole, part)
    w = w - elapsed
    if w < 0 then return end
    if above(w, p, units, parts) then
      units, parts = 0, 0
    else
      units, parts = units - w, parts - p
      if parts < 0 then units, parts = units - 1, parts + tick end
    end
    is_changed = true
  end

  function account.save()
    local ms = milliseconds(units * unit)
    if ms < ttl then ms = ttl end
    if is_changed and units == 0 and parts == 0 then
      call('DEL', key)
    elseif is_changed or is_carried then
      local text
      if base >= 0 and units % 1000 == 0 and at_n % 1000 == 0 and units < 9.4e13 then
        local count = ceil(units, whole)
        if count > 12 then count = 12 end
        local tat = at_s % 300000 * 1000000 + (at_n + units) / 1000
        text = ('%d'):format(base + count * 300e9 + tat % 300e9)
      else
        text = ('b %d %d %d %d %d %d %d %d'):format(at_s, at_n, units, parts, tick, whole, part, unit)
      end
      call('SET', key, text, 'PX', ('%d'):format(ms))
    else
      repair(key, ms)
    end
  end

  function account.tell(count, ok)
    local fits = account.fits(count)
    local wait, delay = 0, 0
    if ok then
      fits = true
      if is_leaky then delay = nanos(before or units, before_parts or parts) end
    elseif not fits then
      wait = -1
      if count <= burst then
        local w, p = times(count, tick, whole, part)
        wait = micros(w - (full - units) + ceil(p + parts - full_part, tick), 0)
      end
    elseif is_leaky then
      delay = nanos(units, parts)
    end
    return fits, whole_tokens(), wait, micros(units, parts), delay
  end

  return account
end

function kinds.t(key) return bucket(key, false) end
function kinds.l(key) return bucket(key, true) end
