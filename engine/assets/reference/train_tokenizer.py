"""Trains the reference model's tokenizer and writes tokenizer.json beside this file.

    pip install tokenizers && python3 train_tokenizer.py

The training text is made here, from the word lists below and a fixed seed; nothing is read or downloaded.
Text is cut into words with their leading space, single digits and single punctuation marks before merging, so
a word has the same tokens wherever it stands and a merge never joins letters with marks or digits.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FUNCTION = """the a an of to in on at by for with from and or but if then so as is are was were be been has have had do
does did not no yes it its he she they we you i me him her them us my your his their our this that these those there
here when where which who what why how all each every some any many few more most less least one two three four five
six seven eight nine ten first second third last next before after during until while since between among under over
above below near far into onto out off up down again also only just even still yet already often never always
sometimes soon later today tomorrow yesterday now once twice please because although however therefore than too very
can could will would shall should may might must about against along around behind beside beyond within without through
across toward upon per via like unlike except instead both either neither nor such same other another own""".split()
NOUNS = """river gate bridge tower garden window door key lock locker tag ticket number code label sign letter word line
page book shelf table chair lamp candle mirror carpet curtain wall roof floor stair corner room hall house barn mill
harbor market street road path field meadow forest tree leaf branch root seed flower grass stone rock sand hill valley
mountain lake pond island shore ocean wave tide wind rain snow cloud storm sun moon star sky morning noon evening night
day week month year hour minute season spring summer autumn winter bird finch sparrow robin heron eagle owl horse cow
sheep goat dog cat fox wolf bear deer rabbit mouse fish trout salmon frog snake spider bee ant child baker miller smith
farmer sailor captain pilot driver doctor nurse teacher student writer painter singer dancer lawyer judge clerk guard
soldier king queen friend neighbor brother sister mother father uncle aunt cousin bread butter cheese apple pear plum
cherry lemon orange onion carrot potato tomato pepper salt sugar honey milk water tea coffee wine soup rice bean corn
wheat flour oven kettle spoon fork knife plate bowl cup glass bottle basket bag box case drawer shirt coat hat shoe
glove scarf belt ring watch clock bell drum flute violin piano song dance story poem picture map chart plan list note
report record file folder system server client network engine motor wheel gear pump valve pipe wire cable signal sensor
screen button switch battery camera radio phone paper pen pencil ink paint brush hammer nail screw saw drill rope chain
ladder wagon cart train ship boat canoe plane car bus truck bicycle ticket station platform track tunnel border city
town village country region district court office school library museum theater hospital church temple castle palace
factory workshop store shop bank post price cost value amount total sum part piece half quarter group team club party
family crowd meeting lesson exam answer question problem reason result cause effect method rule law right duty task job
work play game match race prize goal point score level step stage order secret password passage entry exit request
message context memory cache token model prompt session router request response header body stream packet copper silver
gold iron steel tin lead marble granite amber ruby emerald pearl coral ivory velvet silk cotton wool linen leather
cedar maple birch willow oak pine ash elm cobalt crimson indigo violet scarlet turquoise lantern compass anchor beacon
canyon prairie glacier meridian orchid thistle juniper saffron walnut hazel falcon raven otter badger lynx marten""".split()
VERBS = """open close lock carry bring take give send find keep lose hold move turn push pull lift drop throw catch build
break repair paint clean wash cook bake eat drink read write draw sing play watch look listen hear speak talk tell ask
answer call name count measure weigh cut fold join split mix fill empty cover wrap tie start stop begin end finish wait
stay leave enter cross climb fall walk run jump swim fly drive ride sail travel visit meet help teach learn know think
believe remember forget guess plan choose decide change grow plant water harvest sell buy pay save spend borrow lend
return record copy print sign check test compare repeat store load report request receive deliver protect guard follow
lead win fail try use need want like love hope thank greet rest sleep wake dream work""".split()
ADJECTIVES = """old new young small large big tall short long wide narrow deep shallow high low near warm cold hot cool dry
wet clean dirty bright dark light heavy soft hard smooth rough sharp blunt quick slow early late quiet loud calm busy
empty full open closed safe dangerous simple complex plain strange common rare rich poor cheap strong weak brave kind
gentle proud honest clever wise happy sad tired hungry thirsty fresh ripe sweet sour bitter red blue green yellow white
black brown grey pink purple round square flat steep straight curved public private local foreign modern ancient wooden
metal golden careful exact given useful ready certain possible important different similar whole broken hidden""".split()
NAMES = """Anna Boris Clara David Elena Frank Greta Henry Irene Jonas Karin Louis Marta Nora Oscar Paula Quentin Rosa
Simon Tessa Ulrich Vera Walter Xenia Yusuf Zoe London Paris Berlin Madrid Rome Vienna Prague Oslo Lisbon Dublin Tokyo
Osaka Beijing Shanghai Boston Chicago Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March
April May June July August September October November December English Spanish German French Chinese Japanese""".split()
ENDINGS = ["", "s", "ed", "ing", "er", "ers", "ly", "ness", "ful", "less", "able", "ment", "ation", "ity", "ish", "al"]
STARTS = ["", "un", "re", "pre", "over", "under", "out", "mis", "inter", "non"]
SPANISH = """el la los las un una de del que y en por para con sin sobre es son fue era está hay no sí muy más menos casa
calle puerta ventana libro mesa silla río puente torre jardín ciudad pueblo camino mar cielo sol luna noche día mañana
tarde agua pan leche queso manzana naranja perro gato caballo pájaro hombre mujer niño niña amigo hermano madre padre
rojo azul verde blanco negro grande pequeño nuevo viejo bueno malo abrir cerrar llevar traer buscar encontrar perder
guardar hablar escribir leer caminar correr comer beber dormir vivir trabajar secreto clave número código respuesta
pregunta palabra frase exactamente primero segundo último también siempre nunca ahora después antes""".split()
GERMAN = """der die das ein eine und oder aber in auf an mit ohne für von zu bei nach aus über unter ist sind war waren
nicht kein sehr mehr weniger Haus Straße Tür Fenster Buch Tisch Stuhl Fluss Brücke Turm Garten Stadt Dorf Weg Meer Himmel
Sonne Mond Nacht Tag Morgen Abend Wasser Brot Milch Käse Apfel Hund Katze Pferd Vogel Mann Frau Kind Freund Bruder
Schwester Mutter Vater rot blau grün weiß schwarz groß klein neu alt gut schlecht öffnen schließen bringen suchen finden
verlieren behalten sprechen schreiben lesen gehen laufen essen trinken schlafen leben arbeiten Geheimnis Schlüssel Nummer
Antwort Frage Wort Satz genau zuerst zuletzt auch immer niemals jetzt danach vorher""".split()
CHINESE = """我们 你们 他们 这个 那个 什么 哪里 时候 今天 明天 昨天 早上 晚上 城市 街道 房子 门 窗户 书 桌子 椅子 河流 桥
塔 花园 村庄 道路 大海 天空 太阳 月亮 水 面包 牛奶 苹果 狗 猫 马 鸟 男人 女人 孩子 朋友 兄弟 母亲 父亲 红色 蓝色 绿色
白色 黑色 大 小 新 旧 好 坏 打开 关闭 带来 寻找 找到 丢失 保存 说话 写 读 走 跑 吃 喝 睡觉 生活 工作 秘密 钥匙 号码
密码 回答 问题 句子 第一 最后 也 总是 从不 现在 以后 以前 是 的 了 在 和 有 不 很 都 就 要 会 可以 没有 一 二 三""".split()
JAPANESE = """私 あなた 彼 彼女 これ それ あれ どこ いつ 今日 明日 昨日 朝 夜 町 通り 家 ドア 窓 本 机 椅子 川 橋 塔 庭 村
道 海 空 太陽 月 水 パン 牛乳 りんご 犬 猫 馬 鳥 男 女 子供 友達 兄弟 母 父 赤い 青い 白い 黒い 大きい 小さい 新しい 古い
開ける 閉める 運ぶ 探す 見つける 失う 守る 話す 書く 読む 歩く 走る 食べる 飲む 眠る 働く 秘密 鍵 番号 答え 質問 言葉 文
最初 最後 いつも 決して 今 後 前 です ます でした ました は が を に で と も の から まで""".split()
CODE = """def return class self import from if else elif for while in not and or None True False print range len str int
float list dict set open read write lambda yield with as try except finally raise pass break continue function const let
var new this null undefined async await export default interface type enum struct impl fn pub mut use mod match loop
static void public private protected final extends implements package string number boolean array object key value name
index item count total result error data path file line size start end left right next prev node tree graph queue stack
buffer config option request response status header body method url host port user token session""".split()
MARKS = list(".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`'\"")


def english(rng):
    noun, verb, adjective = rng.choice(NOUNS), rng.choice(VERBS), rng.choice(ADJECTIVES)
    other, name = rng.choice(NOUNS), rng.choice(NAMES)
    forms = [
        f"The {adjective} {noun} is near the {other}, and {name} {verb}s it {rng.choice(FUNCTION)} {rng.choice(NOUNS)}.",
        f"{name} said: \"{rng.choice(FUNCTION).capitalize()} {noun} {rng.choice(FUNCTION)} the {other} is {adjective}!\"",
        f"Where is the {noun} of the {other}? It is {adjective} {rng.choice(FUNCTION)} {verb}ing.",
        f"The tag of {noun} {rng.choice('ABCQXZ')}{rng.randrange(10)} is {other}-{rng.choice(NOUNS)}-{rng.randrange(10**4)}.",
        " ".join(rng.choice(FUNCTION) for _ in range(12)) + ".",
        " ".join(rng.choice(NOUNS + ADJECTIVES + VERBS) for _ in range(12)) + ".",
    ]
    return rng.choice(forms)


def derived(rng):
    stems = NOUNS + VERBS + ADJECTIVES
    return " ".join(rng.choice(STARTS[: rng.choice([1, 10])]) + rng.choice(stems) + rng.choice(ENDINGS) for _ in range(10))


def code(rng):
    a, b, c = (rng.choice(CODE) for _ in range(3))
    noun = rng.choice(NOUNS)
    forms = [
        f"def {a}_{noun}({b}, {c}={rng.randrange(100)}):\n    return {b}.{c}[{rng.randrange(10)}] + {a}\n",
        f"for (let {b} = 0; {b} < {noun}.length; {b}++) {{ {a}({c}); }}\n",
        json.dumps({"type": "function", "function": {"name": f"{a}_{noun}", "parameters": {b: c}}}) + "\n",
    ]
    return rng.choice(forms)


def corpus(seed=20261202, lines=60_000):
    rng = random.Random(seed)
    for i in range(lines):
        kind = i % 10
        if kind < 4:
            yield english(rng)
        elif kind < 6:
            yield derived(rng)
        elif kind == 6:
            yield code(rng)
        else:
            words, glue = [(SPANISH, " "), (GERMAN, " "), (CHINESE + JAPANESE, rng.choice(["", "", " "]))][kind - 7]
            yield glue.join(rng.choice(words) for _ in range(10)) + rng.choice([".", "。", "?", "!"])
    for word in set(FUNCTION + NOUNS + VERBS + ADJECTIVES + CODE):
        yield "\n".join([f" {word}", word, word.capitalize(), f" {word.capitalize()}", f" {word}s", f"{word}s"] * 30)
    for mark in MARKS:
        yield f" {mark}" * 30 + f"a{mark}" * 30
    for digit in range(10):
        yield f" {digit}" * 30


def main():
    tokenizer = Tokenizer(models.BPE())
    cut = Regex(r"\r?\n| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(cut, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken("NONE", normalized=False)])
    out = json.loads(tokenizer.to_str())
    path = pathlib.Path(__file__).with_name("tokenizer.json")
    path.write_text(json.dumps(out, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print(len(out["model"]["vocab"]), "tokens,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
