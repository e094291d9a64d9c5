-- SPDX-License-Identifier: GPL-2.0-or-later
-- Entries of weak tables die while the table gets larger parts for another one.
local function count(t)
  local n = 0
  for _ in pairs(t) do n = n + 1 end
  return n
end

for _, mode in ipairs {"kv", "v", "k"} do
  local survived = 0
  for round = 1, 30 do
    local t = setmetatable({}, {__mode = mode})
    local kept = {}
    for i = 1, 33 do
      local o = {i}
      if i % 3 == 0 then kept[#kept + 1] = o end
      t["value " .. i] = o
      t[o] = "key " .. i
      t[i] = o
      t[i + 0.5] = i
    end
    for _, o in ipairs(kept) do
      assert(t[o] == "key " .. o[1] and t[o[1]] == o and t["value " .. o[1]] == o)
    end
    for i = 1, 33 do assert(t[i + 0.5] == i) end
    survived = survived + #kept
    t, kept = nil, nil
  end
  print(mode, survived)
end

-- the same key gets another value after its old one has died
local cache, made = setmetatable({}, {__mode = "v"}), 0
for round = 1, 400 do
  for i = 1, 20 do
    local key = "entry " .. i
    local v = cache[key]
    if not v then
      v = {key = key}
      cache[key] = v
    end
    assert(cache[key] == v and v.key == key)
  end
end
collectgarbage()
print(count(cache))

-- the same value gets another key after its old one has died
local values, owners = {}, setmetatable({}, {__mode = "k"})
for i = 1, 20 do values[i] = {i} end
for round = 1, 400 do
  local keys = {}
  for i = 1, 20 do
    keys[i] = {}
    owners[keys[i]] = values[i]
  end
  for i = 1, 20 do assert(owners[keys[i]] == values[i]) end
end
collectgarbage()
print(count(owners))
