-- What was asked. ARGV is words, a space between; first those of the request,
-- then, for each key, those of its limit: see core/src/redis/script/arguments.rs.
--
-- A limit's first word names its kind. kinds[word](key) reads the words
-- behind it and the state under the key, and answers an account:
--   charge(units)       charges, whether they fit or not
--   fits(units)         would they fit?
--   left()              whole units that would fit
--   back(units, s, n)   gives back units that were charged at that instant
--   save()              writes what was changed; gives a key its TTL back
--   tell(units, ok)     whether they fit, units left, microseconds to wait
--                       (-1 never) and until nothing is spent; nanoseconds
--                       of delay, where all limits admitted (ok)
--
-- Lua's numbers are exact below 2^53, and no exact quantity is larger: time
-- is kept as seconds and nanoseconds, and of two instants the difference.
s = s + 0
local floor, word = math.floor, table.concat(ARGV, ' '):gmatch('%S+')
local kinds = {}

local function number()
  return tonumber(word())
end

-- Not below x / y. A quotient of integers below 2^52 is never rounded to the
-- next integer.
local function ceil(x, y)
  return floor(x / y) + (x % y > 0 and 1 or 0)
end

-- A state that is text, or nothing where another kind of limit wrote it.
local function words(state, kind)
  if not state or state:sub(1, 2) ~= kind .. ' ' then return nil end
  local fields = {}
  for field in state:sub(3):gmatch('%S+') do fields[#fields + 1] = tonumber(field) end
  return fields
end

-- A TTL in milliseconds that covers so many nanoseconds: at least 2, as PTTL
-- tells 0 in the last one.
local function milliseconds(span)
  return (span > 0 and ceil(span, 1e6) or 1) + 1
end

-- A key that lost its TTL gets one.
local function repair(key, ms)
  if call('PTTL', key) == -1 then call('PEXPIRE', key, ('%d'):format(ms)) end
end
